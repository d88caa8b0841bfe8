//! How warm a request found the fleet.

use std::collections::HashSet;

use hypic_domain::flow::{LocatedRequest, Mode, Placement};

/// How warm the fleet was for a placed request: what scaling goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Temperature {
    /// Tokens of segments of which somebody had a usable tuple, or that a snapshot covers.
    pub warm_tokens: u64,
    /// Tokens of all others.
    pub cold_tokens: u64,
    /// There are others.
    pub cold: bool,
}

impl Temperature {
    /// Of a request in mode `pic`; `None` for others, and without segments. A segment that stands twice counts
    /// once: it is built once.
    pub fn of(located: &LocatedRequest, placement: &Placement) -> Option<Self> {
        let mut seen = HashSet::new();
        let mut temperature = Self::default();
        for (place, piece) in located.segmented.segments() {
            if !piece.key.is_some_and(|key| seen.insert(key)) {
                continue;
            }
            let tokens = piece.ids.len() as u64;
            let wanted = placement.sources.get(place).is_some_and(Option::is_some);
            let held = located.located.get(place).is_some_and(|located| !located.holders.is_empty());
            if wanted && !held {
                temperature.cold_tokens += tokens;
                temperature.cold = true;
            } else {
                temperature.warm_tokens += tokens;
            }
        }
        (located.segmented.request.mode == Mode::Pic && !seen.is_empty()).then_some(temperature)
    }
}
