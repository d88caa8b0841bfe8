use hypic_domain::unit::Tokens;
use proptest::prelude::*;

use super::*;

const ROW: [f32; 5] = [0.5, 2.0, -1.0, 1.5, 0.0];

fn draws(sampling: &Sampling, choice: u32, count: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(sampling, choice, &[]);
    (0..count).map(|_| sampler.draw(&ROW).unwrap().id).collect()
}

#[test]
fn no_temperature_takes_the_likeliest_and_the_first_of_equals() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    assert_eq!(draws(&greedy, 0, 3), [1, 1, 1]);
    assert_eq!(Sampler::new(&greedy, 0, &[]).draw(&[3.0, 3.0]).unwrap().id, 0);
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
    let rest: Vec<u32> = (11..30).map(|_| elsewhere.draw(&ROW).unwrap().id).collect();
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
    let first = sampler.draw(&ROW).unwrap();
    assert_eq!((first.id, first.top[4]), (3, (1, IMPOSSIBLE)));
    assert_eq!(sampler.draw(&ROW).unwrap().id, 3);
    assert_eq!(sampler.draw(&ROW).unwrap().id, 1);
}

#[test]
fn reported_probabilities_are_finite_and_sum_to_one() {
    let logit_bias = vec![(0, -100.0), (2, f32::NEG_INFINITY), (99, 5.0)];
    let sampling = Sampling { logit_bias, logprobs: Some(20), ..Sampling::default() };
    let draw = Sampler::new(&sampling, 0, &[]).draw(&ROW).unwrap();
    assert_eq!(draw.top.len(), ROW.len());
    assert!(draw.top.iter().all(|(_, logprob)| logprob.is_finite()));
    assert!(draw.top.is_sorted_by(|a, b| a.1 >= b.1));
    let sum: f32 = draw.top.iter().map(|(_, logprob)| logprob.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6);
    let none = Sampling { logprobs: Some(0), ..Sampling::default() };
    let draw = Sampler::new(&none, 0, &[]).draw(&ROW).unwrap();
    assert!(draw.logprob.is_some() && draw.top.is_empty());
}

#[test]
fn bad_logits_are_an_error_and_not_a_token() {
    let mut sampler = Sampler::new(&Sampling::default(), 0, &[]);
    assert_eq!(sampler.draw(&[0.0, f32::NAN]), Err(DecodeError::ReadLogits { id: 1 }));
    assert_eq!(sampler.draw(&[]), Err(DecodeError::DrawToken { vocab: 0 }));
    let mut masked =
        Sampler::new(&Sampling { logit_bias: vec![(0, f32::NEG_INFINITY)], ..Sampling::default() }, 0, &[]);
    assert_eq!(masked.draw(&[0.0]), Err(DecodeError::DrawToken { vocab: 1 }));
}

proptest! {
    #[test]
    fn every_draw_is_a_token_with_a_probability(
        logits in prop::collection::vec(-50.0f32..50.0, 1..40),
        temperature in 0.0f32..3.0,
        top_k in 0u32..50,
        top_p in 0.0f32..1.2,
        seed in any::<u64>(),
    ) {
        let sampling = Sampling { temperature, top_k, top_p, seed, logprobs: Some(3), ..Sampling::default() };
        let draw = Sampler::new(&sampling, 0, &[]).draw(&logits).unwrap();
        prop_assert!((draw.id as usize) < logits.len());
        prop_assert!(draw.logprob.unwrap() <= 1e-6);
        let place = logits.iter().filter(|logit| **logit > logits[draw.id as usize]).count();
        prop_assert!(top_k == 0 || place < top_k as usize);
    }
}
