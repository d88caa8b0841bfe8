//! Segments of parts seen before. Tokenising is what a prompt costs here, and documents come again and again.

use std::collections::HashMap;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use hypic_domain::key::Scope;

/// Tokens kept in each of the two generations: 16 MiB of ids.
const GENERATION: usize = 4 << 20;

/// The segments of one part: bytes from its start, and ids.
pub(crate) type Slices = Arc<[(Range<usize>, Vec<u32>)]>;

/// What decides a part's segments, and who may know that it was seen: the time of an answer must not tell one
/// tenant what another has sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MemoKey([u8; 32]);

impl MemoKey {
    /// For `text`, of which users wrote `user`.
    pub(crate) fn derive(scope: &Scope, text: &str, user: impl Iterator<Item = Range<usize>>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("hypic 2026 segment memo v1");
        hasher.update(&scope.0).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        for span in user {
            hasher.update(&(span.start as u64).to_le_bytes()).update(&(span.end as u64).to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }
}

/// A cache of two generations: what is used moves to the young one; when that is full, the old one goes.
#[derive(Default)]
pub(crate) struct Memo(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<MemoKey, Slices>,
    old: HashMap<MemoKey, Slices>,
    tokens: usize,
}

impl Memo {
    /// The slices under `key`, made if they are not known.
    pub(crate) fn recall<E>(
        &self,
        key: MemoKey,
        make: impl FnOnce() -> Result<Vec<(Range<usize>, Vec<u32>)>, E>,
    ) -> Result<Slices, E> {
        let known = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match kept.young.get(&key) {
                Some(slices) => return Ok(Arc::clone(slices)),
                None => kept.old.remove(&key),
            }
        };
        let slices = match known {
            Some(slices) => slices,
            None => make()?.into(),
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A part too short for a segment has no slices, but takes room all the same.
        let tokens = 64 + slices.iter().map(|(_, ids)| ids.len()).sum::<usize>();
        if kept.tokens + tokens > GENERATION {
            kept.old = mem::take(&mut kept.young);
            kept.tokens = 0;
        }
        if kept.young.insert(key, Arc::clone(&slices)).is_none() {
            kept.tokens += tokens;
        }
        Ok(slices)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let memo = Memo::default();
        let (used, unused) = (key("used"), key("unused"));
        let recall = |key, tokens: usize| {
            let mut made = false;
            let slices = memo.recall(key, || {
                made = true;
                Ok::<_, Infallible>(vec![(0..1, vec![0; tokens])])
            });
            slices.map(|slices| (slices[0].1.len(), made)).unwrap()
        };
        assert_eq!(recall(used, 3), (3, true));
        assert_eq!(recall(unused, 4), (4, true));
        for round in 0..4 {
            recall(key(&format!("filler {round}")), GENERATION - 200);
            assert_eq!(recall(used, 5), (3, false));
        }
        assert_eq!(recall(unused, 6), (6, true));
    }

    fn key(text: &str) -> MemoKey {
        MemoKey::derive(&Scope::PUBLIC, text, std::iter::empty())
    }

    #[test]
    fn a_part_is_known_to_its_own_scope_only() {
        let of = |scope: u8, user| MemoKey::derive(&Scope([scope; 32]), "x", std::iter::once(user)).0;
        assert_eq!(of(1, 0..1), of(1, 0..1));
        assert_ne!(of(1, 0..1), of(2, 0..1));
        assert_ne!(of(1, 0..1), of(1, 0..0));
    }
}
