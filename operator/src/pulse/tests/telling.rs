//! When the reconciler is told of a pulse.

use super::*;

/// How often the reconciler is told in so many rounds.
async fn told(world: &mut World, rounds: usize) -> usize {
    let mut told = 0;
    for _ in 0..rounds {
        let pulse = world.round().await;
        world.watch.tell(&pulse, || {
            told += 1;
            true
        });
    }
    told
}

#[tokio::test]
async fn at_rest_nothing_is_told() {
    let mut world = World::new(policy(0, 10), 3);
    world.traffic = (2000, 1000);
    told(&mut world, 100).await;
    assert_eq!(told(&mut world, 200).await, 0, "although agents' figures move");
}

#[tokio::test]
async fn live_figures_stay_out_of_messages_until_something_changes() {
    let mut world = World::new(policy(0, 10), 3);
    world.traffic = (2100, 1050);
    let before = world.rounds(100).await.scaling["scatter"].clone();
    world.traffic = (2080, 1040);
    let after = world.rounds(20).await.scaling["scatter"].clone();
    assert!(before.demand > after.demand);
    assert_eq!((before.reason, before.message), (after.reason, after.message));
}

#[tokio::test]
async fn a_share_is_told_in_steps() {
    let mut world = World::new(policy(0, 1), 0);
    world.traffic = (1000, 0);
    world.policy.activation_cold_share_percent = 100;
    told(&mut world, 100).await;
    world.traffic = (1000, 300);
    let times = told(&mut world, 60).await;
    assert!((1..=4).contains(&times), "{times} times in 60 rounds");
    let pulse = world.round().await;
    assert_eq!((pulse.cold_share_percent, pulse.hit_share_percent), (Some(30), Some(70)));
}

#[tokio::test]
async fn a_router_that_is_silent_is_told_and_its_return_too() {
    let mut world = World::new(policy(0, 10), 0);
    told(&mut world, 40).await;
    world.silent = vec!["a"];
    assert_eq!(told(&mut world, 2).await, 1);
    world.silent.clear();
    assert_eq!(told(&mut world, 2).await, 1);
}

#[tokio::test]
async fn what_could_not_be_told_is_told_later() {
    let mut world = World::new(policy(0, 10), 0);
    let pulse = world.round().await;
    let mut told = 0;
    for taken in [false, false, true, true] {
        world.watch.tell(&pulse, || {
            told += 1;
            taken
        });
    }
    assert_eq!(told, 3);
}

#[tokio::test]
async fn a_forgotten_fleet_has_no_pulse_and_comes_back_as_another() {
    let world = World::new(policy(0, 10), 0);
    let before = world.pulses.registered().remove(&key()).unwrap();
    world.reconcile();
    let registered = world.pulses.registered().remove(&key()).unwrap();
    assert_eq!(registered.life, before.life);
    assert_ne!(registered.registration, before.registration);
    let pulse = Pulse {
        routers_asked: 0,
        routers_answered: 0,
        versions: Vec::new(),
        agents: Vec::new(),
        cold_share_percent: None,
        hit_share_percent: None,
        scaling: BTreeMap::new(),
    };
    world.pulses.note(&key(), registered.life, &pulse, || {});
    assert_eq!(world.pulses.get(&key()), Some(pulse.clone()));
    world.reconcile();
    assert_eq!(world.pulses.get(&key()), Some(pulse.clone()), "a registration keeps the pulse");
    world.pulses.forget(&key());
    world.reconcile();
    let measured = Mutex::new(false);
    world.pulses.note(&key(), registered.life, &pulse, || *measured.lock().unwrap() = true);
    assert_eq!(world.pulses.get(&key()), None, "a round of the former one says nothing of this one");
    assert!(!*measured.lock().unwrap());
}
