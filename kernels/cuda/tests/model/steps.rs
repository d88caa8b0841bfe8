//! Steps that a device records and runs again have the bits of those that it is asked for layer by layer, while sequences
//! come and go, grow over pages, swap slots, and get their cached bodies anew.

use std::sync::Arc;

use hypic_domain::logits::Need;
use hypic_kernels::coded::Blocks;
use hypic_kernels::op::{Device, HostLayer, OpError};
use hypic_kernels::plan::{BodyLayers, Context, PlacedBody, Plan, Rule, Run, RunOp};
use hypic_models::Loaded;
use hypic_models::config::Naming;
use hypic_models::model::Memory;
use hypic_models::random::{self, RandomSpec};

use crate::SEAM;
use crate::session::{EXACT, Session};

const PAGE: usize = 16;
const PAGES_EACH: usize = 24;
const MOST: usize = 12;

fn shape(blocks: Option<Blocks>) -> RandomSpec {
    RandomSpec {
        naming: Naming::Qwen35,
        hidden: 128,
        intermediate: 64,
        experts: Some((16, 3)),
        linear_width: 64,
        full_width: 64,
        half_precision: true,
        blocks,
        ..RandomSpec::default()
    }
}

/// Sequences on one device, by number: slots and pages are those of the number.
struct Fleet<'a, D: Device> {
    device: &'a D,
    loaded: &'a Loaded<D>,
    states: D::States,
    pages: D::Pages,
    lengths: [usize; MOST],
    /// Those that have one: it lies before all other tokens.
    bodies: [Option<(Arc<BodyLayers<D>>, u32)>; MOST],
    is_whole: bool,
}

impl<'a, D: Device> Fleet<'a, D> {
    fn new(device: &'a D, loaded: &'a Loaded<D>, is_whole: bool) -> Self {
        let mut states = device.states(&loaded.spec, MOST).unwrap();
        (0..MOST).for_each(|slot| device.reset_slot(&mut states, slot).unwrap());
        let pages = device.pages(&loaded.spec, MOST * PAGES_EACH, PAGE).unwrap();
        let bodies = std::array::from_fn(|_| None);
        Self { device, loaded, states, pages, lengths: [0; MOST], bodies, is_whole }
    }

    /// Places a cached body of `len` tokens before all others, or anew what is there, on other pages.
    fn place(&mut self, number: usize, tuple: &[HostLayer], len: usize) {
        let spec = &self.loaded.spec;
        let layers = BodyLayers::empty(spec.layers.len());
        for (layer, host) in tuple.iter().enumerate() {
            layers.arrive(layer, self.device.import(layer, spec, &mut self.pages, host).unwrap());
        }
        self.bodies[number] = Some((Arc::new(layers), len as u32));
    }

    /// Other pools, at the places of these where the device gives them out again: all sequences are over.
    fn renew(&mut self) {
        for count in [1, MOST] {
            self.states = self.device.states(&self.loaded.spec, count).unwrap();
            self.pages = self.device.pages(&self.loaded.spec, count * PAGES_EACH, PAGE).unwrap();
        }
        (0..MOST).for_each(|number| self.end(number));
    }

    /// A sequence is over: its slot, its pages and its body are for the next one.
    fn end(&mut self, number: usize) {
        self.device.reset_slot(&mut self.states, number).unwrap();
        (self.lengths[number], self.bodies[number]) = (0, None);
    }

    /// The next tokens of some sequences; the bits of the last row's logits of each.
    fn step(&mut self, tokens: &[(usize, &[u32])]) -> Vec<u32> {
        self.try_step(tokens).unwrap()
    }

    /// The same; no sequence goes on where it is refused.
    fn try_step(&mut self, tokens: &[(usize, &[u32])]) -> Result<Vec<u32>, OpError> {
        let lengths = self.lengths;
        let logits = self.logits(tokens);
        if logits.is_err() {
            self.lengths = lengths;
        }
        logits
    }

    fn logits(&mut self, tokens: &[(usize, &[u32])]) -> Result<Vec<u32>, OpError> {
        let (mut ids, mut runs, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for (number, next) in tokens {
            let rows = ids.len()..ids.len() + next.len();
            ids.extend_from_slice(next);
            let body = self.bodies[*number].as_ref();
            let first = body.map_or(0, |(_, len)| *len);
            let is_new = self.lengths[*number] == 0;
            self.lengths[*number] += next.len();
            let place = |(layers, len): &(Arc<_>, u32)| PlacedBody {
                layers: Arc::clone(layers),
                start: 0,
                len: *len,
            };
            let context = Context {
                pages: (number * PAGES_EACH..(number + 1) * PAGES_EACH).collect(),
                live: (first..first + self.lengths[*number] as u32).collect(),
                bodies: body.map(place).into_iter().collect(),
            };
            let apply = (is_new && body.is_some()).then_some(RunOp::Apply { body: 0, rule: Rule::Compose });
            last.push((rows.end - 1, Need::all()));
            runs.push(Run {
                rows: rows.clone(),
                slot: *number,
                context,
                ops: apply.into_iter().chain([RunOp::Rows(rows)]).collect(),
                record: None,
            });
        }
        let (plan, model) = (Plan { ids, runs }, &self.loaded.model);
        let memory = Memory { states: &mut self.states, pages: &mut self.pages };
        let x = if self.is_whole {
            model.step(self.device, &plan, memory)?
        } else {
            let mut x = model.embed(self.device, &plan)?;
            for layer in 0..self.loaded.spec.layers.len() {
                let memory = Memory { states: &mut self.states, pages: &mut self.pages };
                x = model.layer(self.device, layer, &plan, memory, x)?;
            }
            x
        };
        let logits = model.logits(self.device, &x, &last)?;
        Ok(logits.into_iter().filter_map(|row| row.into_all()).flatten().map(f32::to_bits).collect())
    }

    fn states(&self) -> Vec<u32> {
        let of = |slot: usize, layer: usize| self.device.slot_state(&self.states, slot, layer).unwrap();
        let linear = 0..self.loaded.spec.layers.len() - 1;
        let layers = (0..MOST).flat_map(|slot| linear.clone().map(move |layer| (slot, layer)));
        layers.flat_map(|(slot, layer)| of(slot, layer)).map(f32::to_bits).collect()
    }
}

/// Cached segments by their tokens, built alone.
fn build<D: Device>(device: &D, loaded: &Loaded<D>, tokens: usize, salt: usize) -> (Vec<HostLayer>, usize) {
    let ids: Vec<u32> = (0..tokens).map(|at| ((at * 31 + salt * 77) % 256) as u32).collect();
    let tuple = Session::new(device, loaded).build(&ids, device.format(&EXACT));
    (tuple, tokens - SEAM)
}

/// A sequence that goes on where another one's steps were recorded, with the same bodies on other pages: nobody has read
/// those yet when its first step runs.
pub(crate) fn bodies_that_come_anew_are_settled<D: Device>(device: &D) {
    let loaded = random::load(device, &shape(None)).unwrap();
    let tuples =
        [build(device, &loaded, 40, 1), build(device, &loaded, 29, 2), build(device, &loaded, 51, 3)];
    let (mut whole, mut apart) = (Fleet::new(device, &loaded, true), Fleet::new(device, &loaded, false));
    let place = |fleet: &mut Fleet<'_, D>, number: usize| {
        let (tuple, len) = &tuples[number];
        fleet.place(number, tuple, *len);
    };
    let mut at = 0;
    for number in 0..tuples.len() {
        place(&mut whole, number);
        place(&mut apart, number);
        let prompt: Vec<u32> = (0..5 + number as u32).collect();
        assert_eq!(whole.step(&[(number, &prompt)]), apart.step(&[(number, &prompt)]));
    }
    for (numbers, anew) in [([0, 1], Some(1)), ([0, 1], Some(0)), ([2, 1], None), ([2, 1], Some(2))] {
        if let Some(number) = anew {
            place(&mut whole, number);
            place(&mut apart, number);
        }
        for _ in 0..4 {
            at += 1;
            let next = numbers.map(|number| [((number * 7919 + at * 104_729) % 256) as u32]);
            let tokens = [(numbers[0], &next[0][..]), (numbers[1], &next[1][..])];
            let (one, other) = (whole.step(&tokens), apart.step(&tokens));
            assert!(one.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{numbers:?}, {anew:?}");
            assert_eq!(one, other, "{numbers:?}, {anew:?}");
        }
    }
    assert!(whole.states() == apart.states(), "states differ");
}

pub(crate) fn steps_run_again_have_the_same_bits<D: Device>(device: &D, blocks: Option<Blocks>) {
    let loaded = random::load(device, &shape(blocks)).unwrap();
    let (mut whole, mut apart) = (Fleet::new(device, &loaded, true), Fleet::new(device, &loaded, false));
    let token = |number: usize, at: usize| ((number * 7919 + at * 104_729) % 256) as u32;
    let mut same = |tokens: &[(usize, &[u32])]| {
        let (one, other) = (whole.step(tokens), apart.step(tokens));
        assert!(one.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        assert_eq!(one, other, "{tokens:?}");
    };
    // The tables of a step have room for 256 tokens of a sequence, then for more.
    let length = |number: usize| match number {
        1 if cfg!(feature = "gpu-tests") => 240,
        number => 3 + 5 * number,
    };
    // Who goes on in each round, and how often: prompts between them go another way.
    let rounds: [(&[usize], usize); 6] = [
        (&[0], 4),
        (&[0, 1, 2], 5),
        (&[2, 0, 1], 3),
        (&[1], 20),
        (&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 4),
        (&[3], 3),
    ];
    let mut at = [0; MOST];
    for (numbers, times) in rounds {
        for &number in numbers {
            if at[number] == 0 {
                let prompt: Vec<u32> = (0..length(number)).map(|at| token(number, at)).collect();
                at[number] = prompt.len();
                same(&[(number, &prompt)]);
            }
        }
        for _ in 0..times {
            let next: Vec<[u32; 1]> = numbers.iter().map(|&number| [token(number, at[number])]).collect();
            let tokens: Vec<(usize, &[u32])> =
                numbers.iter().zip(&next).map(|(&number, next)| (number, &next[..])).collect();
            same(&tokens);
            numbers.iter().for_each(|&number| at[number] += 1);
        }
    }
    assert!(whole.states() == apart.states(), "states differ");
}

/// Numbers by a seed: of the sequence by Knuth.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// What happens to sequences by chance, the same to those of steps run again and of steps layer by layer: they begin, go
/// on in another order, end, get their bodies anew, and move to pools of their own; a step is refused, a weight goes.
pub(crate) fn whatever_happens_has_the_same_bits<D: Device>(device: &D, seed: u64, turns: usize) {
    let of = |seed| RandomSpec { seed, layers: 2, full_interval: 2, ..shape(None) };
    // Two models on one device, in turn.
    let models = [1, 2].map(|seed| random::load(device, &of(seed)).unwrap());
    let tuples = [21, 40, 51].map(|tokens| build(device, &models[0], tokens, tokens));
    let fleet = |number: usize, is_whole| Fleet::new(device, &models[number], is_whole);
    let mut pairs = [0, 1].map(|number| [fleet(number, true), fleet(number, false)]);
    let mut dice = Dice(seed);
    for turn in 0..turns {
        let which = usize::from(dice.below(6) == 0);
        let pair = &mut pairs[which];
        let number = dice.below(5);
        match dice.below(24) {
            0 => pair.iter_mut().for_each(|fleet| fleet.end(number)),
            1 | 2 if which == 0 => {
                let (tuple, len) = &tuples[number % 3];
                if pair[0].lengths[number] == 0 || pair[0].bodies[number].is_some() {
                    pair.iter_mut().for_each(|fleet| fleet.place(number, tuple, *len));
                }
            }
            3 => pair.iter_mut().for_each(Fleet::renew),
            4 => drop(random::load(device, &RandomSpec { layers: 1, full_interval: 1, ..of(3) }).unwrap()),
            5 => {
                let bad: &[(usize, &[u32])] =
                    if dice.below(2) == 0 { &[(number, &[256])] } else { &[(number, &[1]), (number, &[2])] };
                pair.iter_mut().for_each(|fleet| assert!(fleet.try_step(bad).is_err(), "turn {turn}"));
            }
            _ => {}
        }
        let most = 1 + dice.below(4);
        let mut numbers: Vec<usize> = (0..5).collect();
        (1..5).rev().for_each(|place| numbers.swap(place, dice.below(place + 1)));
        numbers.truncate(most);
        for &number in &numbers {
            if pair[0].lengths[number] == 0 {
                let prompt: Vec<u32> = (0..2 + dice.below(20)).map(|_| dice.below(256) as u32).collect();
                let [one, other] = pair.each_mut().map(|fleet| fleet.step(&[(number, &prompt)]));
                assert_eq!(one, other, "turn {turn}: the prompt of {number}");
            }
        }
        for _ in 0..1 + dice.below(5) {
            let next = numbers.iter().map(|&number| (number, [dice.below(256) as u32])).collect::<Vec<_>>();
            let tokens: Vec<_> = next.iter().map(|(number, next)| (*number, &next[..])).collect();
            let [one, other] = pair.each_mut().map(|fleet| fleet.step(&tokens));
            assert!(one.iter().all(|bits| f32::from_bits(*bits).is_finite()), "turn {turn}: {tokens:?}");
            assert_eq!(one, other, "turn {turn}: {tokens:?}");
            if numbers.iter().any(|&number| pair[0].lengths[number] + 25 > PAGES_EACH * PAGE) {
                numbers.iter().for_each(|&number| pair.iter_mut().for_each(|fleet| fleet.end(number)));
                break;
            }
        }
    }
    for [whole, apart] in &pairs {
        assert!(whole.states() == apart.states(), "states differ");
    }
}

/// Rounds in which sequences of other lengths begin, go on together and end, on a device that nobody else uses: later ones
/// use what the first one did.
#[cfg(feature = "fibers")]
pub(crate) fn what_steps_use_does_not_grow<D: Device>(device: &D) {
    let loaded = random::load(device, &shape(None)).unwrap();
    let (mut fleet, mut dice) = (Fleet::new(device, &loaded, true), Dice(5));
    let round = |_| {
        for number in 0..MOST {
            let prompt: Vec<u32> = (0..1 + dice.below(99)).map(|_| dice.below(200) as u32).collect();
            fleet.step(&[(number, &prompt)]);
            let first = number - dice.below(3.min(number + 1));
            for token in 0..2 + dice.below(4) as u32 {
                let next = [token];
                let rows: Vec<_> = (first..=number).map(|of| (of, &next[..])).collect();
                fleet.step(&rows);
            }
        }
        (0..MOST).for_each(|number| fleet.end(number));
        device.memory().unwrap().used
    };
    let used: Vec<u64> = (0..3).map(round).collect();
    // The tables of the last steps are as long as these were.
    assert!(used[0] > 0 && used[2] <= used[0] + used[0] / 100, "{used:?}");
}
