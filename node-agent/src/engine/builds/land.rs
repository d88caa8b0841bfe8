//! Layers of builds: finished on the device, brought to the host, and given out.
//!
//! Where the device keeps what it has finished with the bits of what is stored, a layer is there for prompts at once,
//! and goes to the host for all others as soon as nothing is more urgent.

use std::sync::{Arc, PoisonError};

use hypic_domain::key::SegmentKey;
use hypic_kernels::op::{Device, Export, HostLayer};
use hypic_kernels::plan::Context;
use hypic_store::StoredTuple;
use hypic_store::codec::Part;

use super::{Build, write_failed};
use crate::engine::EngineError;
use crate::engine::core::Core;
use crate::engine::edge::BuildEvent;
use crate::engine::scatter::{Delivery, Listener};
use crate::engine::tuple::host_layer;

impl<D: Device> Core<D> {
    /// Finishes one layer of a build that ends in this step of `rows` of its rows.
    pub(in crate::engine) fn finish_layer(
        &mut self,
        key: &SegmentKey,
        rows: usize,
        layer: usize,
        context: &Context<D>,
    ) -> Result<(), EngineError> {
        let combines = self.combines();
        let Some(place) = self.builds.iter().position(|build| build.key == *key) else { return Ok(()) };
        let build = &mut self.builds[place];
        let Some(running) = &build.running else { return Ok(()) };
        if running.computed + rows < build.program.program.rows() {
            return Ok(());
        }
        let recording = running.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let finished = self.device.finish(&Export {
            layer,
            spec: self.model.spec(),
            recording: &recording,
            states: &self.memory.states,
            slot: running.hold.slot(),
            pages: &self.memory.pages,
            context,
            body: build.program.body,
            format: self.config.format,
        });
        drop(recording);
        let built = Arc::new(finished.map_err(EngineError::run_step)?);
        let keeps = self.device.keeps(&self.config.format);
        if keeps && combines {
            let body = Arc::clone(&build.body);
            self.take_built(key, &body, (layer, &built)).map_err(EngineError::run_step)?;
        }
        let build = &mut self.builds[place];
        if keeps {
            for listener in &build.listeners {
                listener.deliver(Delivery::Layer { key: *key, layer, built: Arc::clone(&built) });
            }
        }
        build.unlanded.push_back(built);
        let is_read = build.listeners.iter().any(Listener::is_reading);
        if keeps && !is_read { Ok(()) } else { self.land_layer(place) }
    }

    /// Brings the next layer of a build to the host, in the format that is stored, and gives it out.
    fn land_layer(&mut self, place: usize) -> Result<(), EngineError> {
        let build = &mut self.builds[place];
        let layer = build.landed;
        let (Some(built), Some(writer)) = (build.unlanded.pop_front(), &mut build.writer) else {
            return Err(EngineError::ReadOrder {
                reason: format!("layer {layer} of a build was not finished"),
            });
        };
        let landed = self.device.land(layer, self.model.spec(), &built).map_err(EngineError::run_step)?;
        self.counters.count_heads(landed.live_heads(&self.layers[layer]));
        let parts = writer.push_layer(landed.parts.iter().cloned()).map_err(write_failed)?.to_vec();
        build.landed += 1;
        let key = build.key;
        self.use_layer(place, layer, &landed)?;
        let build = &mut self.builds[place];
        // A worker that had it before may have told it already: the same layer.
        if build.told.len() == layer {
            build.tell(BuildEvent::Layer { key, layer, parts });
        }
        Ok(())
    }

    /// Puts a layer in place for prompts here, if it is not there. What is used went through the stored format: a hit
    /// gives the same bits.
    fn use_layer(&mut self, place: usize, layer: usize, host: &HostLayer) -> Result<(), EngineError> {
        if !self.combines() {
            return Ok(());
        }
        let build = &self.builds[place];
        let (key, body) = (build.key, Arc::clone(&build.body));
        self.take_over(&key, &body, (layer, host)).map_err(EngineError::run_step)
    }

    /// A worker has encoded a layer.
    pub(in crate::engine) fn layer_of_worker(
        &mut self,
        key: SegmentKey,
        layer: usize,
        parts: Vec<Part>,
    ) -> Result<(), EngineError> {
        let Some(place) = self.builds.iter().position(|build| build.key == key) else { return Ok(()) };
        let host = host_layer(&self.builds[place].head, layer, &parts).map_err(write_failed)?;
        self.use_layer(place, layer, &host)?;
        self.counters.count_heads(host.live_heads(&self.layers[layer]));
        self.builds[place].tell(BuildEvent::Layer { key, layer, parts });
        Ok(())
    }

    /// A worker has built a whole tuple.
    pub(in crate::engine) fn built_by_worker(
        &mut self,
        key: &SegmentKey,
        tuple: StoredTuple,
    ) -> Result<(), EngineError> {
        let layers = self.layers.len();
        let Some(place) = self.builds.iter().position(|build| build.key == *key) else { return Ok(()) };
        if self.builds[place].told.len() != layers || self.builds[place].body.ready() != layers {
            return Err(EngineError::ReadOrder {
                reason: "a layer of a worker's tuple is missing".to_owned(),
            });
        }
        let mut build = self.builds.remove(place);
        build.took = Some(build.since.elapsed());
        self.counters.built_by_workers += 1;
        self.publish_tuple(&mut build, tuple);
        Ok(())
    }

    /// Brings one layer of the oldest build that is computed to the host. False when all are there.
    pub(in crate::engine) fn land(&mut self) -> bool {
        let Some(place) = self.builds.iter().position(Build::is_computed) else { return false };
        if let Err(error) = self.land_layer(place) {
            let key = self.builds[place].key;
            self.fail_build(&key, &error);
        }
        self.publish_builds();
        true
    }

    /// Tuples that wait for the host take the memory of recordings, which are at least twice as large.
    pub(super) fn bound_unlanded(&mut self) {
        while self.builds.iter().filter(|build| build.is_computed()).count() >= 2 * self.config.builds {
            self.land();
        }
    }
}
