//! Ranks against one device, for every device that can be a rank.
//!
//! Prompts in one go and in steps, builds, composition and decode; tuples of either taken over by the other.

use hypic_domain::model::LayerSpec;
use hypic_domain::tuple::Dtype;
use hypic_kernels::op::{Checked, Device, HostLayer};
use hypic_kernels::parallel::{Rank, TensorParallel};
use hypic_kernels::tolerance::{Compared, bound, error};
use hypic_models::Loaded;

use crate::SEGMENT;
use crate::session::{EXACT, Session};

/// A device and the model on it.
pub(crate) struct On<D: Device> {
    pub(crate) device: D,
    pub(crate) loaded: Loaded<D>,
}

impl<D: Device> On<D> {
    /// `load` puts the model onto the device.
    pub(crate) fn new(device: D, load: impl Fn(&D) -> Loaded<D>) -> Self {
        let loaded = load(&device);
        Self { device, loaded }
    }

    pub(crate) fn session(&self) -> Session<'_, D> {
        Session::new(&self.device, &self.loaded)
    }
}

fn close(what: &str, (found, right): (&[f32], &[f32]), compared: Compared, dtype: Dtype) {
    let right: Vec<f64> = right.iter().map(|&value| f64::from(value)).collect();
    let (error, bound) = (error(found, &right), bound(compared, dtype));
    println!("{what}: {error:e}");
    assert!(error <= bound, "{what}: {error:e} over {bound:e}");
}

/// Everything that is computed of a prompt of `ids` is, within the table's bounds, what one device computes.
pub(crate) fn equal_one<D: Rank>(one: &On<D>, several: &On<TensorParallel<D>>, ids: &[u32], dtype: Dtype) {
    let logits = |what: &str, found: &[f32], right: &[f32]| {
        close(what, (found, right), Compared::Logits, dtype);
    };
    let (mut right, mut found) = (one.session(), several.session());
    let whole = right.prefill(ids, 1000);
    logits("whole prompt", &found.prefill(ids, 1000), &whole);
    close("states of layer 0", (&found.state(0), &right.state(0)), Compared::State, dtype);
    let next = &ids[..3];
    let decoded = right.prefill(next, 1);
    logits("decode", &found.prefill(next, 1), &decoded);
    logits("steps of 37", &several.session().prefill(ids, 37), &whole);

    // Plain rows are compared; what a device stores of its own accord may have values in another order.
    for format in [EXACT, one.device.format(&EXACT)] {
        let (mut right, mut found) = (one.session(), several.session());
        let tuples = |build: &mut dyn FnMut(&[u32]) -> Vec<HostLayer>| -> Vec<Vec<HostLayer>> {
            ids.chunks(SEGMENT).take(ids.len().div_ceil(SEGMENT) - 1).map(build).collect()
        };
        let theirs = tuples(&mut |ids| right.build(ids, format));
        let ours = tuples(&mut |ids| found.build(ids, format));
        for (ours, theirs) in ours.iter().zip(&theirs).filter(|_| format == EXACT) {
            for (layer, parts) in ours.iter().zip(theirs).enumerate() {
                same_parts((layer, &one.loaded.spec.layers[layer]), parts, dtype);
            }
        }
        let composed = right.compose_of(ids, theirs.clone());
        logits("composed", &found.compose_of(ids, ours.clone()), &composed);
        let decoded = right.prefill(next, 1);
        logits("decode behind it", &found.prefill(next, 1), &decoded);
        logits("composed of one device's tuples", &several.session().compose_of(ids, theirs), &composed);
        logits("the ranks' tuples on one device", &one.session().compose_of(ids, ours), &composed);
    }
}

/// A tuple is the same whoever built it. Behind the first layer of a model in bf16 rounding decides which experts a row
/// chooses, and with them its values: there logits are what is compared.
fn same_parts((layer, spec): (usize, &LayerSpec), (ours, theirs): (&HostLayer, &HostLayer), dtype: Dtype) {
    let compare = |what: &str, (found, right): (&[f32], &[f32])| {
        assert_eq!(found.len(), right.len(), "{what} of layer {layer}");
        let compared = if layer == 0 { Compared::State } else { Compared::Logits };
        if layer == 0 || dtype == Dtype::F32 {
            close(&format!("{what} of layer {layer}"), (found, right), compared, dtype);
        }
    };
    assert_eq!(ours.live_heads(spec), theirs.live_heads(spec));
    let [ours, theirs] = [ours, theirs].map(|host| match host.check("test", spec).unwrap() {
        Checked::Linear { transition, state, tail, .. } => {
            vec![("T", transition), ("S", state), ("tail", tail)]
        }
        Checked::Full { key, value, .. } => vec![("keys", key), ("values", value)],
    });
    for ((what, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        compare(what, (&ours.decode(), &theirs.decode()));
    }
}
