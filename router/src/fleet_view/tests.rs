use super::*;

fn entry(id: &str, role: AgentRole) -> AgentEntry {
    AgentEntry { id: AgentId::from(id), role, control: "[::1]:1".into(), bulk: "[::1]:2".into() }
}

fn topology(epoch: u64, combine: &[&str]) -> Topology {
    let agents = combine.iter().map(|id| entry(id, AgentRole::Combine)).collect();
    Topology { epoch: Epoch(epoch), revision: 0, agents }
}

fn seen(identity: u8) -> Seen {
    let spec = ModelSpec {
        id: "tiny".into(),
        layers: Vec::new(),
        hidden: 8,
        vocab: 16,
        context: hypic_domain::unit::Tokens(64),
    };
    Seen {
        incarnation: Incarnation(1),
        identity: Identity([identity; 32]),
        spec: Arc::new(spec),
        ready: true,
        rows_ahead: 0,
        prefill: Vec::new(),
        link_bytes_per_ms: 0.0,
        link_fixed: Millis(0.0),
        live_share: 1.0,
        index_whole: true,
        state: AgentState::default(),
    }
}

#[test]
fn most_ready_combine_agents_choose_the_identity_and_others_are_left_out() {
    let view = FleetView::new(topology(1, &["a", "b", "c"]));
    assert!(!view.snapshot().is_ready());
    view.saw(&"a".into(), seen(1));
    assert_eq!(view.snapshot().identity, Some(Identity([1; 32])));
    view.saw(&"b".into(), seen(2));
    assert_eq!(view.snapshot().identity, Some(Identity([1; 32])), "a tie changes nothing");
    view.saw(&"c".into(), seen(2));
    let snapshot = view.snapshot();
    assert_eq!(snapshot.identity, Some(Identity([2; 32])));
    let usable: Vec<&str> = snapshot.usable().map(|agent| agent.entry.id.as_str()).collect();
    assert_eq!(usable, ["b", "c"]);
}

#[test]
fn an_older_topology_is_refused_and_a_newer_one_keeps_what_is_known() {
    let view = FleetView::new(topology(5, &["a", "b"]));
    view.saw(&"a".into(), seen(1));
    assert_eq!(view.adopt(topology(4, &["x"]), TopologySource::Push), ((Epoch(5), 0), false));
    assert_eq!(view.adopt(topology(6, &["a", "c"]), TopologySource::Push), ((Epoch(6), 0), true));
    let snapshot = view.snapshot();
    assert_eq!(snapshot.ring.epoch(), Epoch(6));
    assert!(snapshot.agent(&"a".into()).is_some());
    assert!(snapshot.agent(&"b".into()).is_none());
    assert!(snapshot.is_ready());
}

#[test]
fn topologies_are_ordered_by_epoch_and_then_by_revision() {
    let view = FleetView::new(topology(5, &["a"]));
    let at = |epoch, revision| Topology { revision, ..topology(epoch, &["a"]) };
    assert_eq!(view.adopt(at(5, 3), TopologySource::Push), ((Epoch(5), 3), true));
    assert_eq!(view.adopt(at(5, 2), TopologySource::Push), ((Epoch(5), 3), false));
    assert_eq!(view.adopt(at(4, 9), TopologySource::Push), ((Epoch(5), 3), false));
    assert_eq!(
        view.adopt(at(5, 3), TopologySource::Push),
        ((Epoch(5), 3), true),
        "the same again is no news and no fault"
    );
    assert_eq!(
        view.adopt(at(5, 3), TopologySource::File),
        ((Epoch(5), 3), false),
        "a file does not undo a push"
    );
    assert_eq!(view.adopt(at(5, 4), TopologySource::File), ((Epoch(5), 4), true));
    assert_eq!(view.adopt(at(6, 0), TopologySource::Push), ((Epoch(6), 0), true));
}

#[test]
fn a_lost_or_failing_agent_is_not_used() {
    let view = FleetView::new(topology(1, &["a", "b"]));
    view.saw(&"a".into(), seen(1));
    view.saw(&"b".into(), seen(1));
    view.lost(&"a".into());
    for _ in 0..3 {
        view.failed(&"b".into());
    }
    assert!(!view.snapshot().is_ready());
    view.saw(&"a".into(), seen(1));
    view.worked(&"b".into());
    view.saw(&"b".into(), seen(1));
    assert_eq!(view.snapshot().usable().count(), 2);
}

#[test]
fn rows_under_way_count_as_load_until_they_are_done() {
    let view = Arc::new(FleetView::new(topology(1, &["a"])));
    let load = || view.snapshot().agent(&"a".into()).expect("seen").seen.rows_ahead;
    view.saw(&"a".into(), seen(1));
    let first = view.sent(&"a".into(), 700);
    let second = view.sent(&"a".into(), 50);
    assert_eq!(load(), 750);
    drop(first);
    assert_eq!(load(), 50);
    view.saw(&"a".into(), Seen { rows_ahead: 60, ..seen(1) });
    assert_eq!(load(), 60, "the agent's own word counts");
    drop(second);
    assert_eq!(load(), 10, "and what is done is taken off it");
}
