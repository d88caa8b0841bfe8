use futures::FutureExt;

use super::*;

fn admission(running: usize, queued: usize) -> Admission {
    Admission::new(Limits { running, queued })
}

fn admit(admission: &Admission, tenant: &str) -> Place {
    admission.admit(&TenantId::from(tenant), None).expect("a place")
}

/// The turn, if it is there already.
fn now(place: Place) -> Option<Turn> {
    place.turn().now_or_never().map(|turn| turn.expect("the queue lives").0)
}

#[test]
fn the_queue_is_bounded_and_says_when_to_come_back() {
    let admission = admission(1, 1);
    let running = now(admit(&admission, "a")).expect("runs at once");
    assert_eq!(admission.oldest(), None);
    let before = Instant::now();
    let waiting = admit(&admission, "a");
    assert!(admission.oldest().is_some_and(|oldest| oldest >= before));
    let refusal = admission.admit(&TenantId::from("a"), None).err().expect("full");
    let Refusal::Admit { retry_after } = refusal else { panic!("{refusal}") };
    assert!(retry_after >= Duration::from_secs(1));
    drop(running);
    let running = now(waiting).expect("its turn");
    assert_eq!(admission.counts(), (1, 0));
    drop(running);
    assert_eq!(admission.counts(), (0, 0));
}

#[tokio::test]
async fn tenants_take_turns() {
    let admission = admission(1, 10);
    let running = now(admit(&admission, "busy")).expect("runs");
    let busy: Vec<Place> = (0..3).map(|_| admit(&admission, "busy")).collect();
    let rare = admit(&admission, "rare");
    drop(running);
    let mut busy = busy.into_iter();
    let first = now(busy.next().expect("first")).expect("the first of the busy tenant");
    drop(first);
    let rare = now(rare).expect("the rare tenant is second, not last");
    drop(rare);
    for place in busy {
        drop(place.turn().await);
    }
    assert_eq!(admission.counts(), (0, 0));
}

#[test]
fn who_leaves_the_queue_frees_its_place_and_its_turn() {
    let admission = admission(1, 2);
    let running = now(admit(&admission, "a")).expect("runs");
    let gone = admit(&admission, "a");
    let waiting = admit(&admission, "b");
    drop(gone);
    assert_eq!(admission.counts(), (1, 1));
    drop(running);
    // Granted, but never taken.
    drop(waiting);
    assert_eq!(admission.counts(), (0, 0));
    assert!(admission.shared.lock().tenants.is_empty());
}

#[test]
fn a_tenant_at_its_own_limit_does_not_hold_up_the_others() {
    let admission = admission(4, 10);
    let one = TenantId::from("one");
    let running = now(admission.admit(&one, Some(1)).expect("place")).expect("runs");
    let second = admission.admit(&one, Some(1)).expect("place");
    assert_eq!(admission.counts(), (1, 1));
    assert_eq!(admission.oldest(), None, "more capacity would not help");
    let other = now(admit(&admission, "two")).expect("runs at once");
    drop(running);
    assert!(now(second).is_some());
    drop(other);
}

#[tokio::test]
async fn work_that_panics_is_an_internal_error() {
    let cpu = CpuWork::new(1);
    assert_eq!(cpu.run(|| -> u32 { panic!("boom") }).await, Err(Refusal::Internal));
    assert_eq!(cpu.run(|| 7).await, Ok(7));
}
