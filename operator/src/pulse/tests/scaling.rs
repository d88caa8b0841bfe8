//! Who sets the number, when, and what is told of it.

use hypic_crds::scaling::ScalingMode;

use super::*;

/// Traffic of which half is cold, and the cold half is so many workers' at 70 % use.
fn cold(workers: u64) -> (u64, u64) {
    (700 * workers, 350 * workers)
}

fn scatter(pulse: &Pulse) -> &ScalingPulse {
    &pulse.scaling["scatter"]
}

#[tokio::test]
async fn a_pool_goes_from_zero_to_what_is_needed_and_back() {
    let mut world = World::new(policy(0, 10), 0);
    world.rounds(12).await;
    assert_eq!(
        (world.replicas(), world.server.see(|stored| stored.reads)),
        (0, 0),
        "at rest nothing is asked"
    );

    world.traffic = cold(3);
    let pulse = world.rounds(24).await;
    assert_eq!(world.replicas(), 3);
    assert_eq!((scatter(&pulse).desired, scatter(&pulse).recommended, scatter(&pulse).frozen), (3, 3, false));
    assert_eq!((scatter(&pulse).cold_share, scatter(&pulse).demand), (0.5, 2100.0));
    let writes = world.writes();
    world.rounds(120).await;
    assert_eq!(world.writes(), writes, "steady traffic changes nothing");

    world.traffic = (1000, 0);
    let pulse = world.rounds(200).await;
    assert_eq!(world.replicas(), 0);
    assert_eq!(scatter(&pulse).desired, 0);

    let news = world.server.news();
    assert_eq!(news.len(), world.writes().len(), "one event for each change");
    let (first, last) = (&news[0], &news[news.len() - 1]);
    assert!(first.0 == "ScaledUp" && first.1.starts_with("pool scatter: 0 → 1 workers: "), "{first:?}");
    assert!(last.0 == "ScaledDown" && last.1.ends_with("so it was for 300 s."), "{last:?}");
    let actions: std::collections::BTreeSet<_> =
        world.server.see(|stored| stored.news.iter().map(|news| news.action.clone()).collect());
    assert_eq!(actions.len(), news.len(), "events that say different things are not one series");
}

#[tokio::test]
async fn a_silent_router_freezes_a_pool_and_is_told_once() {
    let mut world = World::new(policy(0, 10), 4);
    world.traffic = cold(4);
    world.rounds(80).await;
    world.silent = vec!["b"];
    world.traffic = (1000, 0);
    let pulse = world.rounds(3).await;
    assert!(!scatter(&pulse).frozen, "a router may be silent for a while");
    let pulse = world.rounds(200).await;
    assert_eq!((scatter(&pulse).reason, scatter(&pulse).frozen), ("Frozen", true));
    assert_eq!((pulse.routers_asked, pulse.routers_answered), (2, 1));
    assert_eq!((world.replicas(), world.writes()), (4, vec![]));
    let frozen = ("ScalingFrozen", "pool scatter: 4 workers: router b does not answer.".to_owned());
    assert_eq!(world.server.news(), [frozen]);

    world.silent.clear();
    let pulse = world.rounds(80).await;
    assert!(!scatter(&pulse).frozen);
    assert!(world.replicas() < 4, "it goes on when the counters are back");
}

#[tokio::test]
async fn the_minimum_is_set_at_once_without_any_router() {
    let mut world = World::new(policy(2, 10), 0);
    world.routers.clear();
    let pulse = world.round().await;
    assert_eq!((world.replicas(), scatter(&pulse).reason), (2, "AtMinimum"));
    assert_eq!(pulse.cold_share_percent, None);
    world.rounds(10).await;
    assert_eq!(world.writes(), [2]);
    assert_eq!(world.server.news().len(), 1, "a pool that never knew anything is not told to be frozen");
}

#[tokio::test]
async fn a_number_that_somebody_else_sets_is_theirs_until_they_let_go() {
    let mut world = World::new(policy(0, 10), 0);
    world.traffic = cold(3);
    world.server.see(|stored| stored.owner = Some("kubectl".into()));
    let pulse = world.rounds(24).await;
    assert_eq!((world.replicas(), world.server.see(|stored| stored.reads)), (0, 0));
    assert_eq!((scatter(&pulse).externally.as_deref(), scatter(&pulse).desired), (Some("kubectl"), 3));
    assert!(scatter(&pulse).message.starts_with("would be: 0 → 3 workers: "), "{}", scatter(&pulse).message);

    world.server.see(|stored| stored.owner = None);
    let pulse = world.round().await;
    assert_eq!((world.replicas(), scatter(&pulse).externally.as_deref()), (3, None));
}

#[tokio::test]
async fn an_owner_that_the_reconciler_has_not_seen_yet_is_seen_before_the_write() {
    let mut world = World::new(policy(0, 10), 2);
    world.rounds(12).await;
    world.blind = true;
    world.server.see(|stored| (stored.replicas, stored.owner) = (5, Some("kube-controller-manager".into())));
    world.traffic = cold(9);
    let pulse = world.rounds(24).await;
    assert_eq!((world.replicas(), world.writes()), (5, vec![]));
    assert_eq!(scatter(&pulse).externally.as_deref(), Some("kube-controller-manager"));
    assert_eq!(world.server.see(|stored| stored.reads), 1, "and then it is not asked for again");
}

#[tokio::test]
async fn who_takes_the_number_between_read_and_write_has_it() {
    let mut world = World::new(policy(2, 10), 0);
    world.server.see(|stored| stored.rival = Some("kubectl"));
    world.blind = true;
    let pulse = world.rounds(4).await;
    assert_eq!((world.replicas(), world.writes(), world.server.news()), (0, vec![], vec![]));
    assert_eq!(scatter(&pulse).externally.as_deref(), Some("kubectl"));
    assert_eq!(world.server.see(|stored| stored.reads), 1);
}

#[tokio::test]
async fn a_number_that_moved_meanwhile_is_decided_on_anew() {
    let mut world = World::new(policy(2, 10), 0);
    world.blind = true;
    world.server.see(|stored| stored.replicas = 3);
    world.rounds(4).await;
    assert_eq!((world.replicas(), world.writes()), (3, vec![]), "three are enough");
}

#[tokio::test]
async fn its_own_write_is_known_before_the_reconciler_has_seen_it() {
    let mut world = World::new(policy(2, 10), 0);
    world.blind = true;
    world.rounds(10).await;
    assert_eq!((world.writes(), world.server.see(|stored| stored.reads)), (vec![2], 1));
}

#[tokio::test]
async fn an_advisory_pool_is_only_advised() {
    let mut world = World::new(Scaling { mode: ScalingMode::Advisory, ..policy(1, 10) }, 0);
    world.traffic = cold(3);
    let pulse = world.rounds(24).await;
    assert_eq!(
        (world.replicas(), world.server.see(|stored| stored.reads), world.server.news()),
        (0, 0, vec![])
    );
    assert_eq!((scatter(&pulse).desired, scatter(&pulse).externally.as_deref()), (3, None));
    assert!(scatter(&pulse).message.starts_with("would be: 0 → 3 workers: "), "{}", scatter(&pulse).message);
}

#[tokio::test]
async fn an_operator_that_begins_anew_lowers_nothing_for_a_window() {
    let mut world = World::new(policy(0, 10), 4);
    world.rounds(60).await;
    assert!(world.writes().is_empty());
    world.rounds(60).await;
    assert!(world.replicas() < 4);
}

#[tokio::test]
async fn a_write_that_fails_is_made_in_a_later_round() {
    let mut world = World::new(policy(2, 10), 0);
    world.server.see(|stored| stored.away = true);
    let pulse = world.rounds(3).await;
    assert_eq!((world.replicas(), scatter(&pulse).desired), (0, 2));
    world.server.see(|stored| stored.away = false);
    world.round().await;
    assert_eq!(world.writes(), [2]);
}
