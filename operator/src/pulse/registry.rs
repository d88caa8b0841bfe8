//! What the reconciler and the pulse tell each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ClusterKey, Fleet, Pulse};

/// Fleets and how they are. Clones are the same one.
#[derive(Clone, Default)]
pub struct Pulses(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    fleets: BTreeMap<ClusterKey, Entry>,
    /// Grows with every registration.
    registrations: u64,
}

struct Entry {
    registered: Registered,
    pulse: Option<Pulse>,
}

/// A fleet as it was last registered.
#[derive(Clone)]
pub(super) struct Registered {
    pub(super) fleet: Arc<Fleet>,
    /// Number of the first registration since the key was last forgotten: a cluster that is made anew under the
    /// same name is another one.
    pub(super) life: u64,
    /// Number of this registration.
    pub(super) registration: u64,
}

impl Pulses {
    /// A fleet as the reconciler has just seen it.
    pub fn register(&self, key: ClusterKey, fleet: Fleet) {
        let mut book = self.book();
        book.registrations += 1;
        let registration = book.registrations;
        let before = book.fleets.remove(&key).filter(|entry| entry.registered.fleet.uid == fleet.uid);
        let (life, pulse) = before.map_or((registration, None), |entry| (entry.registered.life, entry.pulse));
        let registered = Registered { fleet: Arc::new(fleet), life, registration };
        book.fleets.insert(key, Entry { registered, pulse });
    }

    /// A fleet that is gone.
    pub fn forget(&self, key: &ClusterKey) {
        self.book().fleets.remove(key);
    }

    /// How a fleet is; nothing before its first round.
    pub fn get(&self, key: &ClusterKey) -> Option<Pulse> {
        self.book().fleets.get(key)?.pulse.clone()
    }

    /// All fleets.
    pub(super) fn registered(&self) -> BTreeMap<ClusterKey, Registered> {
        self.book().fleets.iter().map(|(key, entry)| (key.clone(), entry.registered.clone())).collect()
    }

    /// Notes how a fleet is and runs `also`, unless the fleet has been forgotten meanwhile.
    pub(super) fn note(&self, key: &ClusterKey, life: u64, pulse: &Pulse, also: impl FnOnce()) {
        let mut book = self.book();
        let Some(entry) = book.fleets.get_mut(key).filter(|entry| entry.registered.life == life) else {
            return;
        };
        entry.pulse = Some(pulse.clone());
        also();
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
