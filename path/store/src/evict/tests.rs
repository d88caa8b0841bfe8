use proptest::prelude::*;

use super::*;

const FREE: Limits = Limits { cap: 100, quota: 100 };

fn key(n: u8) -> SegmentKey {
    SegmentKey([n; 32])
}

fn standing(class: Class, saved: f64, ticks: &[u64]) -> Standing {
    let heat = ticks.iter().fold(Heat::COLD, |heat, tick| heat.sighted(*tick, 10.0));
    Standing { owner: Owner(0), class, saved: Millis(saved), heat }
}

fn first(ranking: &Ranking) -> SegmentKey {
    ranking.victims(1, Owner(0), Limits { cap: ranking.used(), quota: u64::MAX }, |_| false).unwrap()[0]
}

#[test]
fn what_saves_less_per_byte_goes_first() {
    let mut ranking = Ranking::default();
    ranking.insert(key(1), standing(Class::Proven, 40.0, &[1]), 20);
    ranking.insert(key(2), standing(Class::Proven, 10.0, &[1]), 4);
    assert_eq!(first(&ranking), key(1));
}

#[test]
fn probation_goes_before_proven_and_kept_goes_last() {
    let mut ranking = Ranking::default();
    ranking.insert(key(1), standing(Class::Kept, 1.0, &[1]), 30);
    ranking.insert(key(2), standing(Class::Proven, 10.0, &[1]), 30);
    ranking.insert(key(3), standing(Class::Probation, 1000.0, &[1, 2, 3]), 30);
    assert_eq!(ranking.victims(100, Owner(0), FREE, |_| false).unwrap(), [key(3), key(2), key(1)]);
}

#[test]
fn old_sights_fade() {
    let mut ranking = Ranking::default();
    ranking.insert(key(1), standing(Class::Proven, 1.0, &[1, 2, 3, 4]), 10);
    ranking.insert(key(2), standing(Class::Proven, 1.0, &[9]), 10);
    assert_eq!(first(&ranking), key(2), "four sights against one");
    ranking.insert(key(2), standing(Class::Proven, 1.0, &[40]), 10);
    assert_eq!(first(&ranking), key(1), "four sights, each of them three half lives older");
}

#[test]
fn heat_is_the_logarithm_of_the_aged_count() {
    let heat = [3, 17, 17, 40].iter().fold(Heat::COLD, |heat, tick| heat.sighted(*tick, 10.0));
    let sum: f64 = [0.3, 1.7, 1.7, 4.0].iter().map(|t: &f64| t.exp2()).sum();
    assert!((heat.0 - sum.log2()).abs() < 1e-12);
}

#[test]
fn an_owner_over_its_quota_pays_itself() {
    let mut ranking = Ranking::default();
    let of = |owner, saved| Standing { owner: Owner(owner), ..standing(Class::Proven, saved, &[1]) };
    ranking.insert(key(1), of(1, 1.0), 20);
    ranking.insert(key(2), of(2, 100.0), 30);
    ranking.insert(key(3), of(2, 10.0), 10);
    let limits = Limits { cap: 100, quota: 40 };
    assert_eq!(ranking.victims(10, Owner(2), limits, |_| false).unwrap(), [key(3)]);
    assert_eq!(ranking.victims(10, Owner(1), limits, |_| false).unwrap(), []);
    assert_eq!(ranking.victims(41, Owner(1), limits, |_| false), None);
}

#[test]
fn what_is_in_use_stays() {
    let mut ranking = Ranking::default();
    ranking.insert(key(1), standing(Class::Probation, 1.0, &[1]), 50);
    ranking.insert(key(2), standing(Class::Proven, 1.0, &[1]), 50);
    assert_eq!(ranking.victims(50, Owner(0), FREE, |k| *k == key(1)).unwrap(), [key(2)]);
    assert_eq!(ranking.victims(51, Owner(0), FREE, |k| *k == key(1)), None);
}

#[test]
fn an_owner_is_not_the_scope() {
    let scope = Scope([9; 32]);
    assert_ne!(Owner::of(&scope).0.to_le_bytes(), scope.0[..8]);
    assert_ne!(Owner::of(&scope), Owner::of(&Scope::PUBLIC));
}

proptest! {
    /// Whatever comes and goes, the sums stay right and the victims make just enough room.
    #[test]
    fn victims_make_room_and_no_more(
        steps in prop::collection::vec((0u8..12, 0u8..3, 1u64..40, 0u64..60, any::<bool>()), 1..60),
        need in 1u64..100, quota in 40u64..100,
    ) {
        let mut ranking = Ranking::default();
        let limits = Limits { cap: 100, quota };
        for (n, owner, bytes, tick, drop) in steps {
            if drop {
                ranking.remove(&key(n));
            } else {
                let standing = Standing { owner: Owner(owner.into()), ..standing(Class::Proven, 1.0, &[tick]) };
                ranking.insert(key(n), standing, bytes);
            }
            prop_assert_eq!(ranking.used(), ranking.entries.values().map(|(_, bytes)| bytes).sum::<u64>());
            prop_assert_eq!(ranking.used(), ranking.used_by.values().sum::<u64>());
            prop_assert_eq!(ranking.order.len(), ranking.len());
        }
        let victims = ranking.victims(need, Owner(1), limits, |_| false);
        prop_assert_eq!(victims.is_some(), need <= quota);
        for victim in victims.into_iter().flatten() {
            let own = ranking.used_by.get(&Owner(1)).copied().unwrap_or(0);
            prop_assert!(own + need > quota || ranking.used() + need > limits.cap, "one victim too many");
            prop_assert!(ranking.remove(&victim).is_some(), "twice the same victim");
        }
        if need <= quota {
            prop_assert!(ranking.used() + need <= limits.cap);
            prop_assert!(ranking.used_by.get(&Owner(1)).copied().unwrap_or(0) + need <= quota);
        }
    }
}
