//! Builds that nobody has begun, and who may take them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use hypic_domain::key::SegmentKey;

use crate::engine::Segment;
use crate::engine::edge::{Age, Command, Doorbell};

/// The place of the device that combines.
pub(in crate::engine) const COMBINES: usize = 0;

/// Builds that nobody has begun, for whichever device is free.
pub(in crate::engine) struct Yard {
    state: Mutex<Waiting>,
}

struct Waiting {
    jobs: Vec<Job>,
    /// Who has which of those that were taken.
    taken: HashMap<SegmentKey, usize>,
    devices: Vec<Seat>,
    is_closed: bool,
}

struct Seat {
    doorbell: Doorbell,
    is_busy: bool,
}

/// A build that nobody has begun.
pub(in crate::engine) struct Job {
    pub(in crate::engine) age: Age,
    pub(in crate::engine) segment: Segment,
    /// Somebody elsewhere reads its layers as they come.
    pub(in crate::engine) is_read: bool,
    /// Gone when nobody wants it any more.
    pub(in crate::engine) wanted: Weak<()>,
}

impl Yard {
    /// For devices with these doorbells, the one that combines first.
    pub(in crate::engine) fn new(doorbells: impl IntoIterator<Item = Doorbell>) -> Self {
        let devices = doorbells.into_iter().map(|doorbell| Seat { doorbell, is_busy: false }).collect();
        let taken = HashMap::new();
        Self { state: Mutex::new(Waiting { jobs: Vec::new(), taken, devices, is_closed: false }) }
    }

    // A panic under the lock leaves whole jobs.
    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a build up.
    pub(super) fn offer(&self, job: Job) {
        let mut state = self.state();
        state.taken.remove(&job.segment.key);
        state.jobs.push(job);
        state.jobs.sort_by_key(|job| job.age);
    }

    /// Wakes the workers that are free, if there is anything for them.
    pub(super) fn wake(&self) {
        let state = self.state();
        if state.jobs.is_empty() {
            return;
        }
        for seat in state.devices.iter().skip(COMBINES + 1).filter(|seat| !seat.is_busy) {
            seat.doorbell.ring(Command::Wake);
        }
    }

    /// Who has a build that was taken.
    pub(super) fn holder(&self, key: &SegmentKey) -> Option<usize> {
        self.state().taken.get(key).copied()
    }

    /// A build is done, or done elsewhere.
    pub(super) fn forget(&self, key: &SegmentKey) {
        self.state().taken.remove(key);
    }

    /// Forgets who has builds that nobody wants any more.
    pub(super) fn forget_unless(&self, is_wanted: impl Fn(&SegmentKey) -> bool) {
        self.state().taken.retain(|key, _| is_wanted(key));
    }

    /// The oldest builds for a device without work: at most `rows` rows, and no more than its share among the devices
    /// that are free, but one at least. Without any the device is free.
    pub(super) fn take(&self, device: usize, rows: usize) -> Vec<Job> {
        let mut state = self.state();
        state.jobs.retain(|job| job.wanted.strong_count() > 0);
        let all: usize = state.jobs.iter().map(|job| job.segment.ids.len()).sum();
        let free = state.devices.iter().enumerate().filter(|(place, seat)| *place == device || !seat.is_busy);
        let share = all.div_ceil(free.count().max(1)).min(rows);
        let mut taken = 0;
        let count = state
            .jobs
            .iter()
            .take_while(|job| {
                let is_first = taken == 0;
                taken += job.segment.ids.len();
                is_first || taken <= share
            })
            .count();
        if let Some(seat) = state.devices.get_mut(device) {
            seat.is_busy = count > 0;
        }
        let jobs: Vec<Job> = state.jobs.drain(..count).collect();
        state.taken.extend(jobs.iter().map(|job| (job.segment.key, device)));
        jobs
    }

    /// Leaves a device out of all shares, until it takes again.
    pub(super) fn leave_out(&self, device: usize) {
        if let Some(seat) = self.state().devices.get_mut(device) {
            seat.is_busy = true;
        }
    }

    /// Nobody waits for anything any more: workers end.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for seat in state.devices.drain(..).skip(COMBINES + 1) {
            seat.doorbell.ring(Command::Wake);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().is_closed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypic_domain::key::Scope;

    use super::*;

    fn yard(devices: usize) -> Yard {
        Yard::new((0..devices).map(|_| Doorbell::new().0))
    }

    /// Puts builds of so many rows up; they are wanted as long as what is returned is kept.
    fn offer(yard: &Yard, lens: &[usize]) -> Vec<Arc<()>> {
        let one = |(number, len): (usize, &usize)| {
            let wanted = Arc::new(());
            let (key, ids) = (SegmentKey([number as u8; 32]), vec![1; *len]);
            let segment = Segment { key, scope: Scope::PUBLIC, ids, publish: true };
            let wants = Arc::downgrade(&wanted);
            yard.offer(Job { age: number as u64, segment, is_read: false, wanted: wants });
            wanted
        };
        lens.iter().enumerate().map(one).collect()
    }

    fn ages(jobs: &[Job]) -> Vec<u64> {
        jobs.iter().map(|job| job.age).collect()
    }

    #[test]
    fn devices_that_are_free_share_what_waits_the_oldest_first() {
        let yard = yard(2);
        let _wanted = offer(&yard, &[100; 6]);
        assert_eq!(ages(&yard.take(1, 8192)), [0, 1, 2]);
        // The other is at work: all of the rest.
        assert_eq!(ages(&yard.take(0, 8192)), [3, 4, 5]);
        assert_eq!(yard.holder(&SegmentKey([2; 32])), Some(1));
        yard.forget(&SegmentKey([2; 32]));
        assert_eq!(yard.holder(&SegmentKey([2; 32])), None);
    }

    #[test]
    fn a_share_is_at_most_a_step_and_at_least_one_build() {
        let yard = yard(1);
        let _wanted = offer(&yard, &[600, 100, 100, 100]);
        assert_eq!(ages(&yard.take(0, 512)), [0]);
        assert_eq!(ages(&yard.take(0, 250)), [1, 2]);
    }

    #[test]
    fn what_nobody_wants_is_not_taken() {
        let yard = yard(1);
        let mut wanted = offer(&yard, &[10; 3]);
        wanted.remove(1);
        assert_eq!(ages(&yard.take(0, 100)), [0, 2]);
        assert!(yard.take(0, 100).is_empty());
    }

    #[test]
    fn a_device_that_is_left_out_has_no_share() {
        let yard = yard(3);
        let _wanted = offer(&yard, &[10; 4]);
        yard.leave_out(2);
        assert_eq!(ages(&yard.take(0, 100)), [0, 1]);
        yard.close();
        assert!(yard.is_closed());
        // What is left is for whoever still asks.
        assert_eq!(ages(&yard.take(0, 100)), [2, 3]);
    }
}
