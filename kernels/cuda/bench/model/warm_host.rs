//! The same prompt with its 64 bodies in pinned memory of the host: copied layer by layer while layers are computed.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use hypic_domain::logits::Need;
use hypic_kernels::op::{Device as _, HostLayer};
use hypic_kernels::plan::{BodyLayers, Plan};
use hypic_models::model::Memory;

use super::{Bench, Body, REPEATS, SEAM, SEGMENT, SEGMENTS};

/// Every body's layers, as they are stored.
type Hosts = Vec<Vec<HostLayer>>;

pub(super) fn warm_host(bench: &mut Bench, note: &mut impl FnMut(&str, f64)) -> Result<()> {
    for (suffix, skip_below) in [("", 0.0), ("_skipping", 1e-3)] {
        let hosts: Hosts =
            (0..SEGMENTS).map(|_| Ok(bench.build_stored(skip_below)?.0)).collect::<Result<_>>()?;
        let bytes: u64 = hosts.iter().flatten().map(HostLayer::bytes).sum();
        let copies = bench.median(REPEATS, |bench| bench.copy(&hosts))?;
        note(&format!("warm_host{suffix}_copies"), copies);
        println!("{:<28} {:>10.2} GB, {:.1} GB/s", "", bytes as f64 / 1e9, bytes as f64 / 1e6 / copies);
        note(&format!("warm_host{suffix}"), bench.median(REPEATS, |bench| bench.compose(&hosts))?);
        let bodies = bench.take_over(&hosts)?;
        note(&format!("warm_host{suffix}_there"), bench.median(REPEATS, |b| b.warm(&bodies, SEGMENTS))?);
        if suffix.is_empty() {
            drop(bodies);
            let plain: Hosts =
                hosts.iter().map(|layers| layers.iter().map(in_plain_memory).collect()).collect();
            note("warm_host_plain_copies", bench.median(1, |bench| bench.copy(&plain))?);
            note("warm_host_plain", bench.median(1, |bench| bench.compose(&plain))?);
        }
    }
    Ok(())
}

fn in_plain_memory(layer: &HostLayer) -> HostLayer {
    let parts = layer.parts.iter().map(|(kind, bytes)| (*kind, Bytes::copy_from_slice(bytes))).collect();
    HostLayer { parts, ..layer.clone() }
}

impl Bench {
    /// Milliseconds until every layer of all bodies has arrived.
    fn copy(&mut self, hosts: &Hosts) -> Result<f64> {
        self.device.wait()?;
        let begun = Instant::now();
        // What is dropped is waited for, on the device.
        drop(self.take_over(hosts)?);
        self.device.wait()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    /// All bodies, given to the device layer by layer.
    fn take_over(&mut self, hosts: &Hosts) -> Result<Vec<Body>> {
        let spec = self.loaded.spec.clone();
        let bodies: Vec<Body> = self.places(hosts.len());
        for layer in 0..spec.layers.len() {
            self.take_layer(hosts, &bodies, layer)?;
        }
        Ok(bodies)
    }

    fn places(&self, count: usize) -> Vec<Body> {
        let layers = self.loaded.spec.layers.len();
        (0..count).map(|_| (Arc::new(BodyLayers::empty(layers)), SEGMENT - SEAM)).collect()
    }

    fn take_layer(&mut self, hosts: &Hosts, bodies: &[Body], layer: usize) -> Result<()> {
        for (host, (body, _)) in hosts.iter().zip(bodies) {
            let parts = self.device.import(layer, &self.loaded.spec, &mut self.pages, &host[layer])?;
            body.arrive(layer, parts);
        }
        Ok(())
    }

    /// Milliseconds from the first copy to what greedy decoding needs of the logits.
    fn compose(&mut self, hosts: &Hosts) -> Result<f64> {
        self.device.reset_slot(&mut self.states, 0)?;
        self.device.wait()?;
        let begun = Instant::now();
        let bodies = self.places(hosts.len());
        let runs = self.warm_runs(&bodies, SEGMENTS);
        let rows = runs.iter().map(|run| run.rows.len()).sum();
        let plan = Plan { ids: self.ids(rows), runs };
        let mut x = self.loaded.model.embed(&self.device, &plan)?;
        for layer in 0..self.loaded.spec.layers.len() {
            self.take_layer(hosts, &bodies, layer)?;
            let memory = Memory { states: &mut self.states, pages: &mut self.pages };
            x = self.loaded.model.layer(&self.device, layer, &plan, memory, x)?;
        }
        let logits = self.loaded.model.logits(&self.device, &x, &[(rows - 1, Need::largest(1))])?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        super::check_finite(&logits)?;
        Ok(ms)
    }
}
