//! Tuples on the device: those in use, and those used last as long as there is room for them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::unit::Bytes;
use hypic_kernels::op::Device;
use hypic_kernels::plan::BodyLayers;
use hypic_store::{Observer, StoreEvent};

/// The bodies of an engine. What is in use is never dropped, so that only what nobody uses obeys the budget.
pub(super) struct Bodies<D: Device> {
    layers: usize,
    budget: Bytes,
    places: HashMap<SegmentKey, Place<D>>,
    bytes: u64,
    uses: u64,
    /// Is told which bodies stay.
    observer: Observer,
}

struct Place<D: Device> {
    body: Weak<BodyLayers<D>>,
    /// Once it is whole.
    kept: Option<Arc<BodyLayers<D>>>,
    bytes: u64,
    used: u64,
}

impl<D: Device> Bodies<D> {
    /// None yet; 0 bytes keep none beyond its use.
    pub(super) fn new(layers: usize, budget: Bytes, observer: Observer) -> Self {
        Self { layers, budget, places: HashMap::new(), bytes: 0, uses: 0, observer }
    }

    /// The place of a tuple's layers, shared by all who use it now.
    pub(super) fn place(&mut self, key: SegmentKey) -> Arc<BodyLayers<D>> {
        self.uses += 1;
        if let Some(place) = self.places.get_mut(&key)
            && let Some(body) = place.body.upgrade()
        {
            place.used = self.uses;
            return body;
        }
        self.forget(&key);
        let body = Arc::new(BodyLayers::empty(self.layers));
        let place = Place { body: Arc::downgrade(&body), kept: None, bytes: 0, used: self.uses };
        self.places.insert(key, place);
        body
    }

    /// Counts a layer that arrived.
    pub(super) fn grew(&mut self, key: &SegmentKey, bytes: u64) {
        if let Some(place) = self.places.get_mut(key) {
            place.bytes += bytes;
            self.bytes += bytes;
        }
    }

    /// Drops what nobody uses until so many more bytes fit, as far as that goes.
    pub(super) fn make_room(&mut self, bytes: u64) {
        while self.bytes + bytes > self.budget.0 && self.drop_oldest() {}
    }

    /// Drops the body that nobody uses and whose last use is longest ago. False when there is none.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let idle = self.places.iter().filter(|(_, place)| place.is_idle());
        let oldest = idle.min_by_key(|(_, place)| place.used).map(|(key, _)| *key);
        oldest.inspect(|key| self.forget(key)).is_some()
    }

    /// Keeps what has become whole and forgets what is gone.
    pub(super) fn sweep(&mut self) {
        let gone = self.places.iter().filter(|(_, place)| place.body.strong_count() == 0);
        let gone: Vec<SegmentKey> = gone.map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| self.forget(key));
        if self.budget.0 == 0 {
            return;
        }
        for (key, place) in &mut self.places {
            if place.kept.is_none()
                && let Some(body) = place.body.upgrade()
                && body.ready() == self.layers
            {
                place.kept = Some(body);
                let bytes = Bytes(place.bytes);
                (self.observer)(StoreEvent::Added { key: *key, tier: Tier::Device, bytes });
            }
        }
        self.make_room(0);
    }

    /// How many stay, and the bytes of all that are there.
    pub(super) fn usage(&self) -> (usize, u64) {
        (self.places.values().filter(|place| place.kept.is_some()).count(), self.bytes)
    }

    fn forget(&mut self, key: &SegmentKey) {
        let Some(place) = self.places.remove(key) else { return };
        self.bytes -= place.bytes;
        if place.kept.is_some() {
            (self.observer)(StoreEvent::Removed { key: *key });
        }
    }
}

impl<D: Device> Place<D> {
    fn is_idle(&self) -> bool {
        self.kept.as_ref().is_some_and(|body| Arc::strong_count(body) == 1)
    }
}
