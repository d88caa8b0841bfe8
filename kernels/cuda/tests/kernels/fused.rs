//! Launches that do what several did have the bits of those.

use half::bf16;
use hypic_cuda::{
    Attention, AttentionForm, Buffer, Choice, Context, Contexts, Device, ExpertWeights, Experts, ExpertsFew,
    FewPart, FullShape, Heads, RmsNorm, Routed, Router, SumAndNorm, Token, add_norm, add_norm_scores_few,
    attention_as, choose_experts, experts_few, norm_and_store, norm_product_few, product_few, rms_norm,
    sigmoid_gate, store_kv,
};
use rand::RngExt;

use crate::codes::{BLOCKS, Placed, Weight};
use crate::run::{bits, on_devices};
use crate::truth::{fresh, random};

const EPS: f32 = 1e-6;
const PAGE: usize = 16;

fn exact(len: usize) -> Vec<f32> {
    random(len, 1.0).into_iter().map(bf16::to_f32).collect()
}

fn place(device: &Device, values: &[bf16]) -> Buffer<bf16> {
    Buffer::from_slice(device, values).unwrap()
}

fn nan(device: &Device, len: usize) -> Buffer<bf16> {
    place(device, &vec![bf16::NAN; len])
}

fn zero_centred(weight: &Buffer<f32>) -> RmsNorm<'_> {
    RmsNorm { weight, offset: 1.0, eps: EPS }
}

fn bits_of(buffer: &Buffer<bf16>) -> Vec<u32> {
    bits(&buffer.read().unwrap().into_iter().map(bf16::to_f32).collect::<Vec<_>>())
}

/// A mixture over a few rows.
#[derive(Clone)]
struct Mixture {
    /// Rows, experts of each, experts; hidden, width of an expert, width of the shared one or 0.
    counts: [usize; 3],
    sizes: [usize; 3],
    x: Vec<bf16>,
    scores: Vec<f32>,
    gates: Vec<f32>,
    matrices: [Weight; 4],
}

/// How a mixture runs.
#[derive(Clone, Copy)]
struct Form {
    /// The choice is made in the launch that needs it.
    chooses: bool,
    renormalise: bool,
    /// All rows so many times.
    times: usize,
}

impl Mixture {
    /// `is_coded`: the experts that are chosen from, and the shared one.
    fn random(counts: [usize; 3], sizes: [usize; 3], [routed, shared]: [bool; 2]) -> Self {
        let ([rows, _, experts], [hidden, width, apart]) = (counts, sizes);
        let weight = |shape: [usize; 3], is_coded: bool| match is_coded {
            true => Weight::coded(shape, BLOCKS, 0.1),
            false => Weight::wide(shape.iter().product(), 0.1),
        };
        let mut rng = fresh();
        // Few different values, so that there are ties.
        let scores = (0..rows * experts).map(|_| rng.random_range(-20..20) as f32 / 4.0).collect();
        let matrices = [
            weight([experts, 2 * width, hidden], routed),
            weight([experts, hidden, width], routed),
            weight([1, 2 * apart, hidden], shared),
            weight([1, hidden, apart], shared),
        ];
        Self { counts, sizes, x: random(rows * hidden, 1.0), scores, gates: exact(rows), matrices }
    }

    /// What is added to the rows themselves.
    fn run(&self, device: &Device, form: Form) -> Vec<u32> {
        self.tried(device, form).unwrap()
    }

    fn tried(
        &self,
        device: &Device,
        Form { chooses, renormalise, times }: Form,
    ) -> hypic_cuda::Result<Vec<u32>> {
        let ([rows, top, experts], [hidden, width, apart]) = (self.counts, self.sizes);
        let matrices = self.matrices.each_ref().map(|weight| weight.place(device));
        let [gate_up, down, shared_gate_up, shared_down] = matrices.each_ref().map(Placed::matrix);
        let [logits, gates] = [&self.scores, &self.gates]
            .map(|values| Buffer::from_slice(device, &values.repeat(times)).unwrap());
        let shared = ExpertWeights { width: apart, gate_up: shared_gate_up, down: shared_down };
        let mut out = place(device, &self.x.repeat(times));
        let mut choice = if chooses {
            let assignments = times * rows * top;
            let into = Experts {
                chosen: Buffer::from_slice(device, &vec![u32::MAX; assignments]).unwrap(),
                weights: Buffer::from_slice(device, &vec![f32::NAN; assignments]).unwrap(),
            };
            Choice::ToMake { logits, renormalise, into }
        } else {
            Choice::Made(choose_experts(device, &logits, experts, top, renormalise).unwrap())
        };
        let run = ExpertsFew {
            x: &place(device, &self.x.repeat(times)),
            hidden,
            experts,
            choice: &mut choice,
            routed: ExpertWeights { width, gate_up, down },
            shared: (apart > 0).then_some((shared, &gates)),
            out: &mut out,
        };
        experts_few(device, run)?;
        Ok(bits_of(&out))
    }
}

#[test]
fn experts_chosen_and_summed_in_place_have_the_bits_of_the_launches_apart() {
    // Fewer assignments than experts, and more; of one row as many experts as have a warp each, and more; sums of one warp,
    // and longer ones; more experts than a lane keeps at best; codes.
    for (counts, sizes, is_coded) in [
        ([1, 8, 40], [96, 32, 64], [false; 2]),
        ([2, 3, 300], [288, 32, 0], [false; 2]),
        ([7, 2, 9], [64, 544, 32], [false; 2]),
        ([8, 3, 5], [544, 32, 96], [false; 2]),
        ([1, 1, 1], [2080, 32, 32], [false; 2]),
        ([1, 15, 17], [96, 512, 480], [false; 2]),
        ([1, 16, 17], [64, 32, 32], [false; 2]),
        ([1, 3, 4], [64, 544, 32], [false; 2]),
        ([1, 4, 4], [64, 32, 0], [false; 2]),
        ([1, 8, 40], [128, 64, 64], [true; 2]),
        ([7, 2, 9], [64, 576, 32], [true, false]),
        ([2, 3, 5], [192, 64, 0], [true, false]),
        ([1, 7, 9], [128, 512, 64], [false, true]),
        ([1, 7, 9], [128, 64, 512], [true, false]),
    ] {
        let mixture = Mixture::random(counts, sizes, is_coded);
        for renormalise in [false, true] {
            on_devices(|device| {
                let run = |chooses, times| mixture.run(device, Form { chooses, renormalise, times });
                let (apart, fused) = (run(false, 2), run(counts[0] == 1, 1));
                assert!(apart.iter().all(|&bits| f32::from_bits(bits).is_finite()));
                assert!(apart == fused.repeat(2), "{counts:?}, {sizes:?}: other bits");
                fused
            });
        }
    }
}

#[test]
fn scores_that_are_no_numbers_are_their_own_rows_alone() {
    // Fewer assignments than experts, more, and all of them for every row; a row alone.
    for counts in [[3, 4, 40], [4, 3, 5], [3, 5, 5], [8, 32, 32], [1, 4, 9]] {
        let [rows, _, experts] = counts;
        let mut odd = Mixture::random(counts, [64, 32, 32], [false; 2]);
        let scores = odd.scores.clone();
        odd.scores[..experts].fill(f32::NAN);
        if rows > 2 {
            odd.scores[2 * experts..][..3].copy_from_slice(&[f32::INFINITY, f32::NAN, f32::NEG_INFINITY]);
        }
        for renormalise in [false, true] {
            on_devices(|device| {
                let form = |in_place: bool| Form { chooses: in_place && rows == 1, renormalise, times: 1 };
                let [apart, fused] = [false, true].map(|in_place| odd.run(device, form(in_place)));
                let same =
                    |(x, y): (&u32, &u32)| x == y || [x, y].iter().all(|&&x| f32::from_bits(x).is_nan());
                assert!(apart.iter().zip(&fused).all(same), "{counts:?}: other bits");
                let right = Mixture { scores: scores.clone(), ..odd.clone() }.run(device, form(true));
                for (row, (found, right)) in fused.chunks(64).zip(right.chunks(64)).enumerate() {
                    match [0, 2].contains(&row) {
                        true => assert!(found.iter().all(|&x| f32::from_bits(x).is_nan())),
                        false => assert_eq!(found, right, "{counts:?}: row {row}"),
                    }
                }
                fused
            });
        }
    }
}

/// What routes rows, and the rows.
struct Scored {
    /// Rows and their width.
    rows: [usize; 2],
    /// Experts of each row, experts.
    counts: [usize; 2],
    x: Vec<bf16>,
    router: Vec<bf16>,
    gate: Option<Vec<bf16>>,
}

impl Scored {
    fn random(rows: [usize; 2], counts: [usize; 2], has_gate: bool) -> Self {
        let [count, inner] = rows;
        let router = random(counts[1] * inner, 0.05);
        let gate = has_gate.then(|| random(inner, 0.05));
        Self { rows, counts, x: random(count * inner, 1.0), router, gate }
    }

    fn router<'a>(
        &self,
        weight: &'a Buffer<bf16>,
        gate: Option<&'a Buffer<bf16>>,
        renormalise: bool,
    ) -> Router<'a, bf16> {
        let [top, experts] = self.counts;
        Router { weight, experts, gate, top, renormalise }
    }

    /// Scores and gates of rows `x`, by a launch of products.
    fn apart(&self, device: &Device, x: &Buffer<bf16>) -> [Vec<u32>; 2] {
        let ([rows, _], [_, experts]) = (self.rows, self.counts);
        let nan = |len: usize| Buffer::from_slice(device, &vec![f32::NAN; len]).unwrap();
        let (mut logits, mut gates) = (nan(rows * experts), nan(rows));
        let (router, gate) =
            (place(device, &self.router), self.gate.as_ref().map(|gate| place(device, gate)));
        let mut parts = vec![FewPart { weight: (&router).into(), outer: experts, y: &mut logits }];
        if let Some(gate) = &gate {
            parts.push(FewPart { weight: gate.into(), outer: 1, y: &mut gates });
        }
        product_few(device, x, self.rows, parts).unwrap();
        let gates = if gate.is_some() { bits(&gates.read().unwrap()) } else { Vec::new() };
        [bits(&logits.read().unwrap()), gates]
    }
}

/// Scores and gates; nobody is chosen yet.
fn of_routed(routed: &Routed) -> [Vec<u32>; 2] {
    let scores = match &routed.choice {
        Choice::ToMake { logits, into, .. } => {
            assert!(into.chosen.read().unwrap().iter().all(|&id| id == u32::MAX));
            logits.read().unwrap()
        }
        Choice::Made(_) => Vec::new(),
    };
    [bits(&scores), bits(&routed.gates.read().unwrap())]
}

#[test]
fn neither_a_step_of_more_rows_nor_more_experts_than_there_are_is_chosen_in_place() {
    for counts in [[2, 2, 4], [1, 5, 4]] {
        on_devices(|device| {
            let mixture = Mixture::random(counts, [32, 32, 0], [false; 2]);
            let form = Form { chooses: true, renormalise: true, times: 1 };
            let message =
                mixture.tried(device, form).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(message.starts_with("assignments must be"), "{counts:?}: {message}");
        });
    }
}

#[test]
fn sums_norms_and_scores_in_one_have_the_bits_of_the_launches_apart() {
    for (rows, counts, has_gate) in [
        ([1, 96], [2, 40], true),
        ([2, 2080], [3, 17], false),
        ([1, 4128], [5, 33], true),
        ([2, 544], [8, 8], true),
        // The same kernel with more shared memory than before: under what a GPU gives unasked, and over it.
        ([1, 7680], [1, 1], false),
        ([2, 8192], [2, 3], true),
    ] {
        let scored = Scored::random(rows, counts, has_gate);
        let len = rows[0] * rows[1];
        let (r, norm) = (random(len, 1.0), exact(rows[1]));
        on_devices(|device| {
            let norm = Buffer::from_slice(device, &norm).unwrap();
            let (weight, r) = (place(device, &scored.router), place(device, &r));
            let gate = scored.gate.as_ref().map(|gate| place(device, gate));
            let [fused, apart] = [true, false].map(|fused| {
                let (mut x, mut sums, mut normed) =
                    (place(device, &scored.x), nan(device, len), nan(device, len));
                let routed = if fused {
                    let out = [&mut sums, &mut normed];
                    let sum = SumAndNorm { terms: [&x, &r], norm: zero_centred(&norm), out };
                    let router = scored.router(&weight, gate.as_ref(), true);
                    of_routed(&add_norm_scores_few(device, sum, rows, router).unwrap())
                } else {
                    add_norm(device, [&mut x, &mut normed], &r, zero_centred(&norm)).unwrap();
                    sums = x;
                    scored.apart(device, &normed)
                };
                let [logits, gates] = routed;
                [bits_of(&sums), bits_of(&normed), logits, gates]
            });
            assert!(fused.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
            assert!(fused == apart, "{rows:?}: other bits");
            fused
        });
    }
}

#[test]
fn norms_that_every_block_makes_have_the_bits_of_the_launches_apart() {
    // Of values, and with codes among them.
    for (rows, inner, outers) in [
        (1, 2048, vec![(40, false), (1, false)]),
        (2, 2080, vec![(17, false)]),
        (1, 4160, vec![(33, true), (1, false), (2, false), (16, true)]),
        (2, 576, vec![(24, true)]),
        // The same kernels with more shared memory than before: under what a GPU gives unasked, and over it.
        (1, 7680, vec![(3, false)]),
        (2, 8192, vec![(3, false)]),
        (1, 7680, vec![(16, true)]),
        (2, 8192, vec![(16, true)]),
    ] {
        let (x, norm) = (random(rows * inner, 1.0), exact(inner));
        let weight = |&(outer, is_coded): &(usize, bool)| match is_coded {
            true => Weight::coded([1, outer, inner], BLOCKS, 0.05),
            false => Weight::wide(outer * inner, 0.05),
        };
        let weights: Vec<Weight> = outers.iter().map(weight).collect();
        on_devices(|device| {
            let (x, norm) = (place(device, &x), Buffer::from_slice(device, &norm).unwrap());
            let weights: Vec<_> = weights.iter().map(|weight| weight.place(device)).collect();
            let [fused, apart] = [true, false].map(|fused| {
                let mut y: Vec<_> = outers.iter().map(|(outer, _)| nan(device, rows * outer)).collect();
                let parts = weights.iter().zip(&outers).zip(&mut y);
                let parts =
                    parts.map(|((weight, &(outer, _)), y)| FewPart { weight: weight.matrix(), outer, y });
                let parts = parts.collect();
                if fused {
                    norm_product_few(device, (&x, zero_centred(&norm)), [rows, inner], parts).unwrap();
                } else {
                    let mut normed = nan(device, rows * inner);
                    rms_norm(device, &x, zero_centred(&norm), &mut normed).unwrap();
                    product_few(device, &normed, [rows, inner], parts).unwrap();
                }
                y.iter().map(bits_of).collect::<Vec<_>>()
            });
            assert!(fused.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
            assert!(fused == apart, "{rows} rows of {inner}: other bits");
            fused
        });
    }
}

/// Rows that stand at the end of contexts of so many tokens, and the pages of these.
struct Step {
    shape: FullShape,
    tokens: Vec<Vec<Token>>,
    rows: Vec<[u32; 1]>,
}

impl Step {
    fn new(shape: FullShape, lengths: &[usize]) -> Self {
        let mut slot = 0u32;
        let tokens: Vec<Vec<Token>> = lengths
            .iter()
            .map(|&length| {
                slot = slot.next_multiple_of(PAGE as u32);
                (0..length as u32)
                    .map(|position| {
                        slot += 1;
                        Token { slot: slot - 1, position }
                    })
                    .collect()
            })
            .collect();
        Self { shape, tokens, rows: lengths.iter().map(|&length| [length as u32 - 1]).collect() }
    }

    fn contexts(&self, device: &Device) -> Contexts {
        let of = |(tokens, rows): (&'_ Vec<Token>, &'_ [u32; 1])| (tokens.clone(), *rows);
        let all: Vec<_> = self.tokens.iter().zip(&self.rows).map(of).collect();
        let contexts: Vec<_> = all.iter().map(|(tokens, rows)| Context { tokens, rows }).collect();
        Contexts::cut(device, (self.shape, PAGE), &contexts, (Some(64), false)).unwrap()
    }

    fn pages(&self) -> usize {
        let slots = self.tokens.iter().map(|tokens| tokens.len().next_multiple_of(PAGE)).sum::<usize>();
        slots * self.shape.kv_heads * self.shape.key
    }
}

const fn shape(heads: usize, kv_heads: usize, width: usize) -> FullShape {
    FullShape { heads, kv_heads, key: width, value: width, rotary: 16 }
}

#[test]
fn heads_that_are_normed_where_they_are_stored_have_the_bits_of_the_launches_apart() {
    for (shape, lengths) in [
        (shape(3, 1, 64), &[5][..]),
        (shape(4, 2, 128), &[17, 1]),
        (shape(8, 1, 256), &[1, 2, 3, 4, 5, 6, 7, 8]),
    ] {
        let step = Step::new(shape, lengths);
        let (rows, width) = (lengths.len(), shape.key);
        let q = random(rows * shape.heads * width, 1.0);
        let [k, v] = [(); 2].map(|()| random(rows * shape.kv_heads * width, 1.0));
        let norms = [(); 2].map(|()| exact(width));
        on_devices(|device| {
            let contexts = step.contexts(device);
            let [q, k, v] = [&q, &k, &v].map(|values| place(device, values));
            let norms = norms.each_ref().map(|values| Buffer::from_slice(device, values).unwrap());
            let [fused, apart] = [true, false].map(|fused| {
                let [mut key, mut value] = [(); 2].map(|()| nan(device, step.pages()));
                let (mut normed, mut normed_key) = (nan(device, q.len()), nan(device, k.len()));
                if fused {
                    let norms = norms.each_ref();
                    let heads =
                        Heads { q: &q, k: &k, v: &v, norms, offset: 1.0, eps: EPS, normed: &mut normed };
                    norm_and_store(device, heads, &contexts, [&mut key, &mut value]).unwrap();
                } else {
                    rms_norm(device, &q, zero_centred(&norms[0]), &mut normed).unwrap();
                    rms_norm(device, &k, zero_centred(&norms[1]), &mut normed_key).unwrap();
                    store_kv(device, [&normed_key, &v], &contexts, &mut key, &mut value).unwrap();
                }
                [&normed, &key, &value].map(bits_of)
            });
            assert!(fused[0].iter().all(|&bits| f32::from_bits(bits).is_finite()));
            assert!(fused == apart, "{shape:?}: other bits");
            fused
        });
    }
}

#[test]
fn outputs_of_attention_that_are_gated_where_they_are_added_have_the_bits_of_the_launches_apart() {
    // One row whose tokens several jobs share, and one of a single job; or none with partial sums.
    for (shape, lengths) in [(shape(4, 2, 64), &[200, 10][..]), (shape(2, 1, 256), &[3])] {
        let step = Step::new(shape, lengths);
        let size = lengths.len() * shape.heads * shape.key;
        let [q, gate] = [(); 2].map(|()| random(size, 1.0));
        let [key, value] = [(); 2].map(|()| random(step.pages(), 1.0));
        let rope: Vec<f32> = (0..256 * 16).map(|i| if i % 16 < 8 { 1.0 } else { 0.0 }).collect();
        on_devices(|device| {
            let [q, key, value, gate] = [&q, &key, &value, &gate].map(|values| place(device, values));
            let rope = Buffer::from_slice(device, &rope).unwrap();
            let form = match device.capability() {
                Some((9, 0)) => AttentionForm::Hopper,
                _ => AttentionForm::Portable,
            };
            let [fused, apart] = [true, false].map(|fused| {
                let mut out = nan(device, size);
                let run = Attention {
                    q: &q,
                    key: &key,
                    value: &value,
                    contexts: &mut step.contexts(device),
                    rope: &rope,
                    scale: (shape.key as f32).powf(-0.5),
                    gate: fused.then_some(&gate),
                    out: &mut out,
                };
                attention_as(device, run, form).unwrap();
                if !fused {
                    sigmoid_gate(device, &mut out, &gate).unwrap();
                }
                bits_of(&out)
            });
            assert!(fused.iter().all(|&bits| f32::from_bits(bits).is_finite()));
            assert!(fused == apart, "{shape:?}: other bits");
            fused
        });
    }
}
