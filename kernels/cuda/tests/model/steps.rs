//! Steps that a device records and runs again have the bits of those that it is asked for layer by layer, while sequences
//! come and go, grow over pages, and swap slots.

use hypic_domain::logits::Need;
use hypic_kernels::coded::Blocks;
use hypic_kernels::op::Device;
use hypic_kernels::plan::{Context, Plan, Run, RunOp};
use hypic_models::Loaded;
use hypic_models::config::Naming;
use hypic_models::model::Memory;
use hypic_models::random::{self, RandomSpec};

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
    is_whole: bool,
}

impl<'a, D: Device> Fleet<'a, D> {
    fn new(device: &'a D, loaded: &'a Loaded<D>, is_whole: bool) -> Self {
        let mut states = device.states(&loaded.spec, MOST).unwrap();
        (0..MOST).for_each(|slot| device.reset_slot(&mut states, slot).unwrap());
        let pages = device.pages(&loaded.spec, MOST * PAGES_EACH, PAGE).unwrap();
        Self { device, loaded, states, pages, lengths: [0; MOST], is_whole }
    }

    /// The next tokens of some sequences; the bits of the last row's logits of each.
    fn step(&mut self, tokens: &[(usize, &[u32])]) -> Vec<u32> {
        let (mut ids, mut runs, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for (number, next) in tokens {
            let rows = ids.len()..ids.len() + next.len();
            ids.extend_from_slice(next);
            self.lengths[*number] += next.len();
            let context = Context {
                pages: (number * PAGES_EACH..(number + 1) * PAGES_EACH).collect(),
                live: (0..self.lengths[*number] as u32).collect(),
                bodies: Vec::new(),
            };
            last.push((rows.end - 1, Need::All));
            runs.push(Run {
                rows: rows.clone(),
                slot: *number,
                context,
                ops: vec![RunOp::Rows(rows)],
                record: None,
            });
        }
        let (plan, model) = (Plan { ids, runs }, &self.loaded.model);
        let memory = Memory { states: &mut self.states, pages: &mut self.pages };
        let x = if self.is_whole {
            model.step(self.device, &plan, memory).unwrap()
        } else {
            let mut x = model.embed(self.device, &plan).unwrap();
            for layer in 0..self.loaded.spec.layers.len() {
                let memory = Memory { states: &mut self.states, pages: &mut self.pages };
                x = model.layer(self.device, layer, &plan, memory, x).unwrap();
            }
            x
        };
        let logits = model.logits(self.device, &x, &last).unwrap();
        logits.into_iter().filter_map(|row| row.into_all()).flatten().map(f32::to_bits).collect()
    }

    fn states(&self) -> Vec<u32> {
        let of = |slot: usize, layer: usize| self.device.slot_state(&self.states, slot, layer).unwrap();
        (0..MOST).flat_map(|slot| (0..3).flat_map(move |layer| of(slot, layer))).map(f32::to_bits).collect()
    }
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
