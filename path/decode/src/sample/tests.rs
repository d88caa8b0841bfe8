use hypic_domain::unit::Tokens;
use proptest::prelude::*;

use super::*;

const ROW: [f32; 5] = [0.5, 2.0, -1.0, 1.5, 0.0];

fn all(row: &[f32]) -> Logits {
    Logits::All(row.to_vec())
}

fn draws(sampling: &Sampling, choice: u32, count: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(sampling, choice, &[]);
    (0..count).map(|_| sampler.draw(&all(&ROW)).unwrap().id).collect()
}

#[test]
fn no_temperature_takes_the_likeliest_and_the_first_of_equals() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    assert_eq!(draws(&greedy, 0, 3), [1, 1, 1]);
    assert_eq!(Sampler::new(&greedy, 0, &[]).draw(&all(&[3.0, 3.0])).unwrap().id, 0);
}

#[test]
fn a_draw_depends_on_seed_choice_and_place_only() {
    let sampling = Sampling { seed: 7, ..Sampling::default() };
    let whole = draws(&sampling, 0, 40);
    assert_eq!(whole, draws(&sampling, 0, 40));
    assert_ne!(whole, draws(&sampling, 1, 40));
    assert_ne!(whole, draws(&Sampling { seed: 8, ..Sampling::default() }, 0, 40));
}

#[test]
fn an_answer_goes_on_elsewhere_as_it_would_have_here() {
    let sampling = Sampling { seed: 3, frequency_penalty: 0.7, presence_penalty: 0.2, ..Sampling::default() };
    let whole = draws(&sampling, 2, 30);
    let mut elsewhere = Sampler::new(&sampling, 2, &whole[..11]);
    let rest: Vec<u32> = (11..30).map(|_| elsewhere.draw(&all(&ROW)).unwrap().id).collect();
    assert_eq!(rest, whole[11..]);
}

#[test]
fn frequencies_follow_the_softmax() {
    let count = 20_000;
    let drawn = draws(&Sampling { temperature: 0.7, seed: 1, ..Sampling::default() }, 0, count);
    let sum: f64 = ROW.iter().map(|logit| (f64::from(*logit) / 0.7).exp()).sum();
    for (id, logit) in ROW.iter().enumerate() {
        let share = drawn.iter().filter(|drawn| **drawn == id as u32).count() as f64 / count as f64;
        assert!((share - (f64::from(*logit) / 0.7).exp() / sum).abs() < 0.015, "token {id}: {share}");
    }
}

#[test]
fn top_k_and_top_p_narrow_the_draw() {
    let kept = |sampling: Sampling| {
        let mut ids = draws(&sampling, 0, 500);
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    assert_eq!(kept(Sampling { top_k: 2, ..Sampling::default() }), [1, 3]);
    assert_eq!(kept(Sampling { top_p: 0.0, ..Sampling::default() }), [1]);
    // Shares are 0.48, 0.29, 0.11, …: two of them reach 0.6.
    assert_eq!(kept(Sampling { top_p: 0.6, ..Sampling::default() }), [1, 3]);
}

#[test]
fn penalties_count_the_answer() {
    let sampling = Sampling { temperature: 0.0, frequency_penalty: 0.3, ..Sampling::default() };
    assert_eq!(draws(&sampling, 0, 5), [1, 1, 3, 1, 3]);
}

#[test]
fn an_answer_does_not_end_before_its_shortest_length() {
    let sampling = Sampling {
        temperature: 0.0,
        min_tokens: Tokens(2),
        stop_ids: vec![1],
        logprobs: Some(5),
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(&sampling, 0, &[]);
    let first = sampler.draw(&all(&ROW)).unwrap();
    assert_eq!((first.id, first.top[4]), (3, (1, IMPOSSIBLE)));
    assert_eq!(sampler.draw(&all(&ROW)).unwrap().id, 3);
    assert_eq!(sampler.draw(&all(&ROW)).unwrap().id, 1);
}

#[test]
fn reported_probabilities_are_finite_and_sum_to_one() {
    let logit_bias = vec![(0, -100.0), (2, f32::NEG_INFINITY), (99, 5.0)];
    let sampling = Sampling { logit_bias, logprobs: Some(20), ..Sampling::default() };
    let draw = Sampler::new(&sampling, 0, &[]).draw(&all(&ROW)).unwrap();
    assert_eq!(draw.top.len(), ROW.len());
    assert!(draw.top.iter().all(|(_, logprob)| logprob.is_finite()));
    assert!(draw.top.is_sorted_by(|a, b| a.1 >= b.1));
    let sum: f32 = draw.top.iter().map(|(_, logprob)| logprob.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6);
    let none = Sampling { logprobs: Some(0), ..Sampling::default() };
    let draw = Sampler::new(&none, 0, &[]).draw(&all(&ROW)).unwrap();
    assert!(draw.logprob.is_some() && draw.top.is_empty());
}

#[test]
fn bad_logits_are_an_error_and_not_a_token() {
    let mut sampler = Sampler::new(&Sampling::default(), 0, &[]);
    assert_eq!(sampler.draw(&all(&[0.0, f32::NAN])), Err(DecodeError::ReadLogits));
    assert_eq!(sampler.draw(&all(&[])), Err(DecodeError::DrawToken));
    let mut masked =
        Sampler::new(&Sampling { logit_bias: vec![(0, f32::NEG_INFINITY)], ..Sampling::default() }, 0, &[]);
    assert_eq!(masked.draw(&all(&[0.0])), Err(DecodeError::DrawToken));
}

#[test]
fn the_whole_row_is_needed_only_for_many_tokens() {
    let of = |sampling: Sampling| Sampler::new(&sampling, 0, &[]).need();
    let greedy = || Sampling { temperature: 0.0, ..Sampling::default() };
    assert_eq!(of(greedy()), Need::largest(1));
    assert_eq!(of(Sampling { logprobs: Some(20), ..greedy() }), Need::largest(20));
    assert_eq!(of(Sampling { top_k: 1000, top_p: 0.9, ..greedy() }), Need::largest(1));
    assert_eq!(of(Sampling { top_k: 40, top_p: 0.9, ..Sampling::default() }), Need::largest(40));
    let need = of(Sampling { temperature: 0.7, logprobs: Some(4), ..Sampling::default() });
    assert!(matches!(need.portion, Portion::Draw { temperature: 0.7, largest: 4, .. }));
    let need = of(Sampling { temperature: 0.7, top_p: 0.9, logprobs: Some(4), ..Sampling::default() });
    assert_eq!(need, Portion::Nucleus { temperature: 0.7, top_p: 0.9, largest: 4 }.into());
    for whole in [
        Sampling { logprobs: Some(MOST_LARGEST as u32 + 1), ..Sampling::default() },
        Sampling { top_k: MOST_LARGEST as u32 + 1, ..Sampling::default() },
    ] {
        assert_eq!(of(Sampling { logit_bias: vec![(3, 1.0)], ..whole }), Need::all());
    }
    let part = Logits::of_row(&ROW, &Need::largest(5));
    for wider in [Sampling::default(), Sampling { top_p: 0.9, ..Sampling::default() }] {
        let mut sampler = Sampler::new(&wider, 0, &[]);
        let needed = sampler.need();
        assert_eq!(sampler.draw(&part), Err(DecodeError::FindLogits { needed }));
    }
    let mut sampler = Sampler::new(&greedy(), 0, &[]);
    let bad = Logits::of_row(&[0.0, f32::NAN], &Need::largest(1));
    assert_eq!(sampler.draw(&bad), Err(DecodeError::ReadLogits));
}

#[test]
fn each_token_is_changed_once_by_all_that_changes_it() {
    let sampling = Sampling {
        logit_bias: vec![(3, 1.0), (5, f32::INFINITY), (3, 0.5), (8, f32::NEG_INFINITY)],
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        min_tokens: Tokens(4),
        stop_ids: vec![7, 5, 7],
        ..Sampling::default()
    };
    let sorted = |answered: &[u32]| {
        let mut addends = Sampler::new(&sampling, 0, answered).need().addends.to_vec();
        addends.sort_by_key(|(id, _)| *id);
        addends
    };
    assert_eq!(sorted(&[]), [(3, 1.5), (5, MASKED), (7, MASKED), (8, MASKED)]);
    assert_eq!(sorted(&[3, 9, 3]), [(3, 0.25), (5, MASKED), (7, MASKED), (8, MASKED), (9, -0.75)]);
    assert_eq!(sorted(&[3, 9, 3, 7]), [(3, 0.25), (5, -MASKED), (7, -0.75), (8, MASKED), (9, -0.75)]);
    let plain = Sampler::new(&Sampling::default(), 0, &[1, 2, 3]).need();
    assert!(plain.addends.is_empty());
}

#[test]
fn a_draw_made_elsewhere_fails_as_one_made_here() {
    for (row, error) in
        [(&[0.0, f32::NEG_INFINITY][..], DecodeError::ReadLogits), (&[], DecodeError::DrawToken)]
    {
        let mut sampler = Sampler::new(&Sampling::default(), 0, &[]);
        let need = sampler.need();
        assert_eq!(sampler.draw(&Logits::of_row(row, &need)), Err(error.clone()));
        assert_eq!(sampler.draw(&all(row)), Err(error));
    }
}

proptest! {
    // Few different values, so that there are ties; both zeros.
    #[test]
    fn what_is_drawn_does_not_depend_on_how_much_of_the_row_is_there(
        steps in prop::collection::vec(prop::collection::vec(-6i8..6, 60), 1..6),
        zero in prop::sample::select(vec![0.0f32, -0.0]),
        temperature in prop::sample::select(vec![0.0f32, 0.3, 1.0, 2.0]),
        (top_k, top_p) in (0u32..70, prop::sample::select(vec![0.0f32, 0.5, 0.9, 1.0])),
        logprobs in prop::option::of(0u32..21),
        (min_tokens, stop_ids) in (0u32..4, prop::collection::vec(0u32..70, 0..4)),
        penalty in prop::sample::select(vec![0.0f32, 0.0, 0.7, -0.7]),
        logit_bias in prop::collection::vec((0u32..70, -3.0f32..3.0), 0..2),
        seed in any::<u64>(),
    ) {
        let min_tokens = Tokens(min_tokens);
        let (presence_penalty, frequency_penalty) = (penalty, penalty / 2.0);
        let sampling = Sampling {
            temperature, top_k, top_p, seed, logit_bias, presence_penalty, frequency_penalty, logprobs, min_tokens,
            stop_ids, ..Sampling::default()
        };
        let (mut whole, mut part) = (Sampler::new(&sampling, 1, &[]), Sampler::new(&sampling, 1, &[]));
        for step in steps {
            let row: Vec<f32> =
                step.iter().map(|&x| if x == 0 { zero } else { f32::from(x) / 4.0 }).chain([-0.0]).collect();
            let need = part.need();
            let more = match need.portion {
                Portion::Largest(most) => {
                    let addends = need.addends.clone();
                    need.clone().and(Need { portion: Portion::Draw { temperature: 0.7, uniform: 0.4, largest: most + 5 }, addends })
                }
                Portion::Draw { .. } | Portion::Nucleus { .. } => {
                    let addends = need.addends.clone();
                    need.clone().and(Need { portion: Portion::Largest(7), addends })
                }
                Portion::All => Need::all(),
            };
            let right = whole.draw(&all(&row));
            prop_assert_eq!(&part.clone().draw(&Logits::of_row(&row, &more)), &right);
            prop_assert_eq!(&part.draw(&Logits::of_row(&row, &need)), &right);
        }
    }

    #[test]
    fn every_draw_is_a_token_with_a_probability(
        logits in prop::collection::vec(-50.0f32..50.0, 1..40),
        temperature in 0.0f32..3.0,
        top_k in 0u32..50,
        top_p in 0.0f32..1.2,
        seed in any::<u64>(),
    ) {
        let sampling = Sampling { temperature, top_k, top_p, seed, logprobs: Some(3), ..Sampling::default() };
        let draw = Sampler::new(&sampling, 0, &[]).draw(&all(&logits)).unwrap();
        prop_assert!((draw.id as usize) < logits.len());
        prop_assert!(draw.logprob.unwrap() <= 1e-6);
        let place = logits.iter().filter(|logit| **logit > logits[draw.id as usize]).count();
        prop_assert!(top_k == 0 || place < top_k as usize);
    }
}
