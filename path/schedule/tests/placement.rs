//! Properties of every placement, and goldens of a few with their reasons.

// Helpers outside of a test function may unwrap as well.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use hypic_domain::flow::{Holder, LocatedRequest, Mode, Placement, Source};
use hypic_domain::id::{AgentId, Incarnation};
use hypic_domain::tier::Tier;
use hypic_domain::topology::AgentRole;
use hypic_domain::unit::{Bytes, Millis, Tokens};
use hypic_schedule::exact::optimum;
use hypic_schedule::problem::{Piece, Problem, Segment, Snapshot};
use hypic_schedule::{AgentView, Curve, Error, Link, solve};
use proptest::prelude::*;

fn agent(id: &str, role: AgentRole, per_token: f64, gigabytes: f64, ahead: f64) -> AgentView {
    AgentView {
        id: id.into(),
        role,
        curve: Curve::affine(Millis(0.0), Millis(per_token)).unwrap(),
        link: Link::of_speed(Millis(0.0), gigabytes),
        tiers: [f64::INFINITY, 50.0, 7.0, 2.0].map(|speed| Link::of_speed(Millis(0.0), speed)),
        ahead: Millis(ahead),
    }
}

fn combine(id: &str) -> AgentView {
    agent(id, AgentRole::Combine, 0.01, 100.0, 0.0)
}

fn worker(id: &str) -> AgentView {
    agent(id, AgentRole::Scatter, 0.01, 100.0, 0.0)
}

fn holder(agent: &str, tier: Tier) -> Holder {
    Holder { agent: agent.into(), incarnation: Incarnation(1), tier, bytes: Bytes(60 << 20) }
}

fn cold(tokens: u32) -> Piece {
    held(tokens, vec![])
}

fn held(tokens: u32, holders: Vec<Holder>) -> Piece {
    let segment = Segment { seam: Tokens(8), bytes: Bytes(60 << 20), holders, building: None, repeats: None };
    Piece { tokens: Tokens(tokens), segment: Some(segment) }
}

fn building(tokens: u32, by: &str) -> Piece {
    let mut piece = cold(tokens);
    piece.segment.as_mut().unwrap().building = Some(by.into());
    piece
}

fn live(tokens: u32) -> Piece {
    Piece { tokens: Tokens(tokens), segment: None }
}

fn problem(pieces: Vec<Piece>, agents: Vec<AgentView>) -> Problem {
    Problem { seed: 7, layers: 40, pieces, snapshots: vec![], agents }
}

/// Builds only, on `1 + workers` equal nodes, with nothing to move: the textbook problem.
fn pure_build(tokens: &[u32], workers: usize) -> Problem {
    let free = |mut view: AgentView| {
        view.link = Link::default();
        view.tiers = [Link::default(); 4];
        view
    };
    let mut agents = vec![free(combine("combine"))];
    agents.extend((0..workers).map(|n| free(worker(&format!("worker-{n}")))));
    let mut pieces: Vec<Piece> = tokens.iter().map(|tokens| cold(*tokens)).collect();
    for piece in &mut pieces {
        piece.segment.as_mut().unwrap().seam = Tokens(0);
    }
    problem(pieces, agents)
}

fn ready(placement: &Placement) -> f64 {
    placement.reasons[0].cost.0
}

fn any_agent(id: String, role: AgentRole) -> impl Strategy<Value = AgentView> {
    (0.002..0.05f64, 5.0..400.0f64, 0.0..5.0f64, prop_oneof![Just(0.0), 0.0..40.0f64]).prop_map(
        move |(per_token, speed, fixed, ahead)| AgentView {
            curve: Curve::affine(Millis(fixed), Millis(per_token)).unwrap(),
            link: Link::of_speed(Millis(0.1), speed),
            ..agent(&id, role, 1.0, 1.0, ahead)
        },
    )
}

fn any_piece() -> impl Strategy<Value = Piece> {
    let names = ["combine-0", "combine-1", "worker-0", "worker-1", "vanished"];
    let tier = prop_oneof![Just(Tier::Device), Just(Tier::Host), Just(Tier::Disk)];
    let holders = prop::collection::vec((0..names.len(), tier), 0..3)
        .prop_map(move |held| held.into_iter().map(|(by, tier)| holder(names[by], tier)).collect::<Vec<_>>());
    let none = Just(vec![]);
    let builder = prop_oneof![4 => Just(None), 1 => (0..4usize).prop_map(move |by| Some(names[by]))];
    prop_oneof![
        1 => (1..300u32).prop_map(live),
        5 => (9..4000u32, prop_oneof![none, holders], builder).prop_map(|(tokens, holders, builder)| {
            let mut piece = held(tokens, holders);
            piece.segment.as_mut().unwrap().building = builder.map(AgentId::from);
            piece
        }),
    ]
}

fn any_problem(pieces: usize) -> impl Strategy<Value = Problem> {
    let agents = (1..3usize, 0..4usize).prop_flat_map(|(combine, workers)| {
        let combine = (0..combine).map(|n| any_agent(format!("combine-{n}"), AgentRole::Combine).boxed());
        let workers = (0..workers).map(|n| any_agent(format!("worker-{n}"), AgentRole::Scatter).boxed());
        combine.chain(workers).collect::<Vec<_>>()
    });
    (prop::collection::vec(any_piece(), 1..pieces), agents, any::<u64>())
        .prop_map(|(pieces, agents, seed)| Problem { seed, ..problem(pieces, agents) })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn on_equal_nodes_longest_first_keeps_its_bound(
        tokens in prop::collection::vec(1..5000u32, 1..9),
        workers in 0..4usize,
    ) {
        let problem = pure_build(&tokens, workers);
        let nodes = (workers + 1) as f64;
        let found = ready(&solve(&problem).unwrap());
        let best = optimum(&problem).unwrap().0;
        prop_assert!(found >= best * (1.0 - 1e-9));
        prop_assert!(found <= best * (4.0 / 3.0 - 1.0 / (3.0 * nodes)) * (1.0 + 1e-9), "{found} against {best}");
    }

    #[test]
    fn a_placement_is_never_under_the_optimum_and_never_over_building_alone(problem in any_problem(6)) {
        let found = ready(&solve(&problem).unwrap());
        let best = optimum(&problem).unwrap().0;
        prop_assert!(found >= best * (1.0 - 1e-9), "{found} under {best}");
        // Only agents of the problem build already; without them and without workers everything is here.
        let mut alone = problem.clone();
        alone.agents.retain(|agent| agent.role == AgentRole::Combine);
        if problem.pieces.iter().all(|piece| piece.segment.as_ref().is_none_or(|s| s.building.is_none() && s.holders.is_empty())) {
            prop_assert!(found <= ready(&solve(&alone).unwrap()) * (1.0 + 1e-9));
        }
    }

    #[test]
    fn every_segment_is_placed_once_on_agents_of_the_problem(problem in any_problem(24)) {
        let placement = solve(&problem).unwrap();
        let role = |id: &AgentId| problem.agents.iter().find(|agent| agent.id == *id).map(|agent| agent.role);
        prop_assert_eq!(role(&placement.combine), Some(AgentRole::Combine));
        prop_assert_eq!(placement.sources.len(), problem.pieces.len());
        for (piece, source) in problem.pieces.iter().zip(&placement.sources) {
            prop_assert_eq!(piece.segment.is_some(), source.is_some());
            match source {
                Some(Source::Build { worker }) => prop_assert_eq!(role(worker), Some(AgentRole::Scatter)),
                Some(Source::Fetch { holders }) => {
                    prop_assert!(!holders.is_empty());
                    prop_assert!(holders.iter().all(|id| role(id).is_some() && *id != placement.combine));
                }
                Some(Source::Local) => {
                    let segment = piece.segment.as_ref().unwrap();
                    prop_assert!(segment.holders.iter().any(|holder| holder.agent == placement.combine));
                }
                Some(Source::BuildHere) | None => {}
            }
        }
        let explained: Vec<usize> = placement.reasons.iter().filter_map(|reason| reason.piece).collect();
        let segments: Vec<usize> =
            (0..problem.pieces.len()).filter(|place| problem.pieces[*place].segment.is_some()).collect();
        prop_assert_eq!(explained, segments);
    }

    #[test]
    fn solving_twice_or_with_agents_listed_otherwise_is_solving_once(problem in any_problem(24)) {
        let placement = solve(&problem).unwrap();
        prop_assert_eq!(&placement, &solve(&problem).unwrap());
        let mut other = problem.clone();
        other.agents.reverse();
        prop_assert_eq!(placement, solve(&other).unwrap());
    }
}

#[test]
fn without_a_combine_agent_there_is_no_placement() {
    let nobody = problem(vec![live(5)], vec![worker("w")]);
    assert_eq!(solve(&nobody), Err(Error::ChooseCombine { agents: 1 }));
}

#[test]
fn equals_are_spread_over_requests() {
    let agents: Vec<AgentView> = (0..4).map(|n| combine(&format!("combine-{n}"))).collect();
    let mut drawn = std::collections::BTreeMap::new();
    for seed in 0..400 {
        let one = Problem { seed, ..problem(vec![cold(512), live(20)], agents.clone()) };
        *drawn.entry(solve(&one).unwrap().combine).or_insert(0) += 1;
    }
    assert_eq!(drawn.len(), 4);
    assert!(drawn.values().all(|count| (60..140).contains(count)), "{drawn:?}");
}

#[test]
fn a_hit_is_used_wherever_moving_pays() {
    // Sixty moves of 0.6 ms take longer than the rest of the request; still none is built again.
    let mut pieces: Vec<Piece> = (0..60).map(|_| held(512, vec![holder("b", Tier::Device)])).collect();
    pieces.push(live(30));
    let mut busy = combine("b");
    busy.ahead = Millis(500.0);
    let placement = solve(&problem(pieces, vec![combine("a"), busy, worker("w")])).unwrap();
    assert_eq!(placement.combine.as_str(), "a");
    let fetched = |source: &&Option<Source>| matches!(source, Some(Source::Fetch { .. }));
    assert_eq!(placement.sources.iter().filter(fetched).count(), 60);
}

#[test]
fn a_hit_pays_even_where_one_more_segment_would_cost_nothing() {
    let mut one = combine("a");
    one.curve = Curve::new(vec![(Tokens(4096), Millis(16.0))]).unwrap();
    let pieces =
        vec![held(512, vec![holder("a", Tier::Host)]), held(512, vec![holder("b", Tier::Host)]), live(30)];
    let mut busy = combine("b");
    busy.ahead = Millis(500.0);
    let placement = solve(&problem(pieces, vec![one, busy])).unwrap();
    let fetch = Source::Fetch { holders: vec!["b".into()] };
    assert_eq!(placement.sources, [Some(Source::Local), Some(fetch), None]);
}

#[test]
fn a_segment_that_occurs_twice_is_built_once() {
    let mut again = cold(4000);
    again.segment.as_mut().unwrap().repeats = Some(0);
    let mut one = problem(
        vec![cold(4000), again.clone(), cold(3000), live(20)],
        vec![combine("a"), worker("w"), worker("x")],
    );
    let placement = solve(&one).unwrap();
    assert_eq!(placement.sources[0], placement.sources[1]);
    assert!(ready(&placement) < 41.0, "{placement:?}");
    // The first one is under the snapshot: there is no tuple of it.
    one.snapshots = vec![Snapshot { tokens: Tokens(4000), holders: vec![holder("a", Tier::Device)] }];
    let placement = solve(&one).unwrap();
    assert_eq!(placement.sources[0], None);
    assert!(placement.sources[1].is_some());
}

#[test]
fn the_longest_snapshot_that_lies_there_is_used() {
    let mut one = problem(vec![live(100), cold(400), cold(500), live(20)], vec![combine("a"), combine("b")]);
    let snapshot =
        |tokens, agent, tier| Snapshot { tokens: Tokens(tokens), holders: vec![holder(agent, tier)] };
    one.snapshots = vec![
        snapshot(100, "a", Tier::Device),
        snapshot(500, "b", Tier::Host),
        snapshot(250, "b", Tier::Host),
    ];
    let placement = solve(&one).unwrap();
    assert_eq!((placement.combine.as_str(), placement.snapshot), ("b", Tokens(500)));
    assert_eq!(placement.sources[..2], [None, None]);
    // Loading 60 MiB from an object store takes longer than 500 tokens.
    one.snapshots = vec![snapshot(500, "b", Tier::Object)];
    assert_eq!(solve(&one).unwrap().snapshot, Tokens(0));
}

/// One line per reason.
fn show(problem: &Problem) -> String {
    let placement = solve(problem).unwrap();
    let mut text = format!("combine {}, snapshot {}\n", placement.combine, placement.snapshot.0);
    for reason in &placement.reasons {
        let source = reason.piece.and_then(|piece| placement.sources[piece].as_ref());
        let source = source.map_or(String::new(), |source| format!("{source:?} "));
        let piece = reason.piece.map_or("combine".to_owned(), |piece| format!("piece {piece}"));
        text += &format!("{piece}: {source}{:.2} ms: {}\n", reason.cost.0, reason.text);
    }
    text
}

#[test]
fn golden_placements() {
    let uneven = vec![live(40), cold(4000), cold(512), cold(2500), cold(900), cold(1800), live(30)];
    let fleet = vec![combine("a"), combine("b"), worker("w"), worker("x")];
    insta::assert_snapshot!("uneven_cold_segments", show(&problem(uneven.clone(), fleet.clone())));

    let slow: Vec<AgentView> = fleet
        .iter()
        .map(|agent| AgentView { link: Link::of_speed(Millis(0.1), 1.0), ..agent.clone() })
        .collect();
    insta::assert_snapshot!("a_link_too_slow_to_scatter", show(&problem(uneven.clone(), slow)));

    insta::assert_snapshot!("no_workers", show(&problem(uneven, vec![combine("a")])));

    let mixed = vec![
        held(512, vec![holder("a", Tier::Device), holder("b", Tier::Host)]),
        held(512, vec![holder("b", Tier::Device)]),
        held(1024, vec![holder("a", Tier::Disk)]),
        held(64, vec![holder("b", Tier::Device)]),
        building(700, "x"),
        building(700, "b"),
        cold(900),
        live(30),
    ];
    insta::assert_snapshot!("mixed_sources", show(&problem(mixed, fleet)));

    let mut busy = combine("a");
    busy.ahead = Millis(80.0);
    let there = held(512, vec![holder("a", Tier::Device)]);
    insta::assert_snapshot!("a_busy_holder", show(&problem(vec![there, live(30)], vec![busy, combine("b")])));
}

mod located {
    //! From a located request to a problem.
    use super::*;
    use hypic_domain::flow::{Located, Origin, Request, SegmentedRequest};
    use hypic_domain::key::{Scope, SegmentKey};
    use hypic_domain::prompt::Prompt;
    use hypic_domain::sampling::Sampling;
    use hypic_schedule::{FleetView, TupleSize};

    fn fleet() -> FleetView {
        FleetView {
            agents: vec![combine("a"), worker("w")],
            seam: Tokens(8),
            layers: 40,
            tuple: TupleSize { fixed: Bytes(1000), per_token: Bytes(10) },
        }
    }

    fn request(mode: Mode) -> LocatedRequest {
        let piece = |len: usize, key: Option<u8>| hypic_domain::flow::Piece {
            ids: vec![1; len],
            origin: Origin::Part,
            key: key.map(|byte| SegmentKey([byte; 32])),
        };
        let request = Request {
            id: "r".into(),
            tenant: "t".into(),
            scope: Scope::PUBLIC,
            model: "m".into(),
            mode,
            prompt: Prompt::Text(String::new()),
            sampling: Sampling::default(),
            deadline: None::<Instant>,
        };
        let located = |holders: Vec<Holder>| Located { holders, building: None };
        LocatedRequest {
            segmented: SegmentedRequest {
                request,
                pieces: vec![piece(100, Some(1)), piece(50, Some(2)), piece(8, Some(3)), piece(5, None)],
                boundaries: vec![(Tokens(100), SegmentKey([9; 32]))],
            },
            located: vec![
                located(vec![holder("gone", Tier::Device)]),
                located(vec![holder("gone", Tier::Device), holder("a", Tier::Device)]),
                Located::default(),
                Located::default(),
            ],
            snapshots: vec![located(vec![holder("a", Tier::Device)])],
        }
    }

    #[test]
    fn vanished_holders_are_passed_over_and_pieces_without_a_body_have_no_tuple() {
        let problem = Problem::new(&request(Mode::Pic), &fleet()).unwrap();
        assert!(problem.pieces[2].segment.is_none() && problem.pieces[3].segment.is_none());
        let placement = solve(&problem).unwrap();
        assert_eq!(placement.snapshot, Tokens(100));
        assert_eq!(placement.sources, [None, Some(Source::Local), None, None]);

        let mut cold = request(Mode::Pic);
        cold.snapshots = vec![Located::default()];
        cold.located[1] = Located { holders: vec![], building: Some("gone".into()) };
        let problem = Problem::new(&cold, &fleet()).unwrap();
        assert_eq!(problem.pieces[1].segment.as_ref().unwrap().bytes, Bytes(1000 + 42 * 10));
        let placement = solve(&problem).unwrap();
        let built =
            |source: &Option<Source>| matches!(source, Some(Source::Build { .. } | Source::BuildHere));
        assert!(placement.sources[..2].iter().all(built));
    }

    #[test]
    fn equal_keys_are_one_segment() {
        let mut twice = request(Mode::Pic);
        twice.segmented.pieces[1] = twice.segmented.pieces[0].clone();
        let problem = Problem::new(&twice, &fleet()).unwrap();
        let repeats = |place: usize| problem.pieces[place].segment.as_ref().unwrap().repeats;
        assert_eq!((repeats(0), repeats(1)), (None, Some(0)));
    }

    #[test]
    fn modes_use_what_they_may() {
        for (mode, segments, snapshots) in [
            (Mode::Recompute, 0, 0),
            (Mode::Prefix, 0, 1),
            (Mode::Pic, 2, 1),
            (Mode::Add, 2, 0),
            (Mode::Last, 2, 0),
        ] {
            let problem = Problem::new(&request(mode), &fleet()).unwrap();
            let count = problem.pieces.iter().filter(|piece| piece.segment.is_some()).count();
            assert_eq!((count, problem.snapshots.len()), (segments, snapshots), "{}", mode.name());
        }
    }

    #[test]
    fn answers_that_lie_beside_nothing_are_refused() {
        let mut request = request(Mode::Pic);
        request.located.pop();
        let wrong = Error::ReadLocated { pieces: 4, located: 3 };
        assert_eq!(Problem::new(&request, &fleet()), Err(wrong));
    }
}
