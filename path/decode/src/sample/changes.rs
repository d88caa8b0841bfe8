//! What changes logits before anything is drawn: bias and penalties, kept as the answer grows.

use std::collections::HashMap;
use std::sync::Arc;

use hypic_domain::logits::MASKED;
use hypic_domain::sampling::Sampling;

/// Tokens whose logits are changed: those of the bias, and with penalties those of the answer.
#[derive(Clone, Debug)]
pub(super) struct Changes {
    /// `(token, addend)`, each token once. Shared with the need of a step that may still be under way.
    addends: Arc<Vec<(u32, f32)>>,
    /// Where a token stands there, its bias, and how often it is in the answer.
    places: HashMap<u32, Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    bias: f64,
    count: u32,
}

impl Changes {
    pub(super) fn new(sampling: &Sampling) -> Self {
        let mut changes = Self { addends: Arc::default(), places: HashMap::new() };
        for (id, bias) in &sampling.logit_bias {
            changes.change(*id, sampling, |place| place.bias += f64::from(*bias));
        }
        changes
    }

    /// Counts a token of the answer.
    pub(super) fn count(&mut self, id: u32, sampling: &Sampling) {
        if sampling.presence_penalty == 0.0 && sampling.frequency_penalty == 0.0 {
            return;
        }
        self.change(id, sampling, |place| place.count += 1);
    }

    /// What logits are changed by, where `masked` tokens must not be drawn.
    pub(super) fn addends(&self, masked: &[u32]) -> Arc<Vec<(u32, f32)>> {
        if masked.is_empty() {
            return Arc::clone(&self.addends);
        }
        let mut masked = masked.to_vec();
        masked.sort_unstable();
        masked.dedup();
        let others = self.addends.iter().filter(|(id, _)| masked.binary_search(id).is_err());
        Arc::new(others.copied().chain(masked.iter().map(|id| (*id, MASKED))).collect())
    }

    /// Changes a token's place, and its addend with it.
    fn change(&mut self, id: u32, sampling: &Sampling, change: impl FnOnce(&mut Place)) {
        let at = self.places.len();
        let place = self.places.entry(id).or_insert(Place { at, bias: 0.0, count: 0 });
        change(place);
        let Place { at, bias, count } = *place;
        let presence = if count > 0 { f64::from(sampling.presence_penalty) } else { 0.0 };
        let addend = bias - presence - f64::from(sampling.frequency_penalty) * f64::from(count);
        // A bias of infinity says that a token must, or must not, be drawn.
        let addend = (addend as f32).clamp(MASKED, -MASKED);
        let addends = Arc::make_mut(&mut self.addends);
        match addends.get_mut(at) {
            Some(entry) => entry.1 = addend,
            None => addends.push((id, addend)),
        }
    }
}
