//! Who gives way when pages run out: snapshots, then copies for sequences that wait, then the youngest sequence.
//! And when layers of tuples are taken over: tuples on the device that nobody uses.

use std::sync::Arc;

use hypic_domain::key::SegmentKey;
use hypic_domain::sampling::FinishReason;
use hypic_kernels::op::{Device, HostLayer, OpError};
use hypic_kernels::plan::BodyLayers;

use super::EngineError;
use super::core::Core;
use super::edge::Age;

impl<D: Device> Core<D> {
    /// Pages for the next `rows` rows of a running sequence. False when it cannot compute them now: then it
    /// either waits again, or has ended because there is nobody left who could give way.
    pub(super) fn make_room_for(&mut self, age: Age, rows: usize) -> bool {
        let Some(sequence) = self.running.get(&age) else { return false };
        let Some(hold) = &sequence.hold else { return false };
        let missing = self.memory.pages_missing(hold, rows);
        // One more than it fills, for the copy of a shared page.
        let needed = self.memory.pages_for(hold.context.live.len() + rows) + 1;
        if missing > 0 && !self.free_pages(missing, |victim| victim > age) {
            self.give_way(age, needed);
            return false;
        }
        let Some(sequence) = self.running.get_mut(&age) else { return false };
        let request = sequence.prompt.request;
        let Some(hold) = &mut sequence.hold else { return false };
        match self.memory.reserve(&self.device, hold, rows) {
            Ok(reserved) => reserved,
            Err(source) => {
                self.fail_request(request, &EngineError::run_step(source));
                false
            }
        }
    }

    /// Frees pages until `missing` more are free; only running sequences that `may_lose` theirs do.
    pub(super) fn free_pages(&mut self, missing: usize, may_lose: impl Fn(Age) -> bool) -> bool {
        let wanted = self.memory.page_pool.free() + missing;
        while self.memory.page_pool.free() < wanted {
            if self.memory.snapshots.evict_first() {
                continue;
            }
            let parked = self.waiting.iter_mut().filter(|sequence| sequence.start.is_some());
            if let Some(youngest) = parked.max_by_key(|sequence| sequence.age) {
                youngest.start = None;
                continue;
            }
            match self.running.keys().next_back() {
                Some(youngest) if may_lose(*youngest) => self.preempt(*youngest, 0),
                _ => return false,
            }
        }
        true
    }

    /// A sequence that cannot grow waits until somebody else is done. When there is nobody else, an answer is
    /// as long as it can be.
    fn give_way(&mut self, age: Age, pages: usize) {
        let alone = self.running.len() == 1 && !self.builds.iter().any(|build| build.is_running());
        if !alone {
            self.preempt(age, pages);
            return;
        }
        if let Some(sequence) = self.running.remove(&age) {
            if sequence.lead.is_none() {
                sequence.finish(FinishReason::Length);
            } else {
                let (tokens, limit) =
                    (sequence.rows(), self.memory.page_pool.size() * self.memory.page_tokens);
                sequence.fail(EngineError::fit_pages(tokens, limit));
            }
        }
    }

    /// Takes a sequence's memory. It will be computed again, to the same answer, once `pages` are free.
    fn preempt(&mut self, age: Age, pages: usize) {
        if let Some(mut sequence) = self.running.remove(&age) {
            sequence.lose_memory();
            sequence.wants_pages = pages;
            self.counters.preempted += 1;
            let tenant = sequence.prompt.tenant.clone();
            self.waiting.put_back(&tenant, sequence);
        }
    }

    /// Takes one layer of a tuple over, unless it is here. Tuples on the device that nobody uses give way to it.
    ///
    /// # Errors
    /// What the device says; [`OpError::OutOfMemory`] when all bodies are in use.
    pub(super) fn take_over(
        &mut self,
        key: &SegmentKey,
        body: &BodyLayers<D>,
        (layer, host): (usize, &HostLayer),
    ) -> Result<(), OpError> {
        let model = Arc::clone(&self.model);
        self.take(key, body, (layer, host.bytes()), |device, pages| {
            device.import(layer, model.spec(), pages, host)
        })
    }

    /// The same with a layer that was finished on this device or on a further one.
    ///
    /// # Errors
    /// As [`Core::take_over`].
    pub(super) fn take_built(
        &mut self,
        key: &SegmentKey,
        body: &BodyLayers<D>,
        (layer, built): (usize, &Arc<D::BuiltLayer>),
    ) -> Result<(), OpError> {
        let model = Arc::clone(&self.model);
        // Its size is counted when it is here.
        self.take(key, body, (layer, 0), |device, pages| device.adopt(layer, model.spec(), pages, built))
    }

    fn take(
        &mut self,
        key: &SegmentKey,
        body: &BodyLayers<D>,
        (layer, bytes): (usize, u64),
        take: impl Fn(&D, &mut D::Pages) -> Result<D::LayerParts, OpError>,
    ) -> Result<(), OpError> {
        if body.layer(layer).is_some() {
            return Ok(());
        }
        self.bodies.make_room(bytes);
        let parts = loop {
            match take(&self.device, &mut self.memory.pages) {
                Err(OpError::OutOfMemory { .. }) if self.bodies.drop_oldest() => {}
                taken => break taken?,
            }
        };
        self.bodies.grew(key, self.device.layer_bytes(&parts));
        body.arrive(layer, parts);
        Ok(())
    }
}
