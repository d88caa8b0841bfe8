use half::bf16;
use hypic_cuda::{
    Attention, AttentionForm, Buffer, Context, Contexts, Device, FullShape, Token, attention_as, bounds,
    gather_kv, store_kv,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::run::{assert_close, on_devices};
use crate::truth::{fresh, normal};

const PAGE: usize = 16;
const POSITIONS: usize = 4096;

fn angle(shape: FullShape, position: u32, pair: usize) -> f64 {
    f64::from(position) * 1e4f64.powf(-2.0 * pair as f64 / shape.rotary as f64)
}

/// A key or query at its position, in f64.
fn rotated(shape: FullShape, x: &[bf16], position: u32) -> Vec<f64> {
    let mut x: Vec<f64> = x.iter().map(|x| f64::from(x.to_f32())).collect();
    for i in 0..shape.rotary / 2 {
        let (sin, cos) = angle(shape, position, i).sin_cos();
        let j = i + shape.rotary / 2;
        (x[i], x[j]) = (x[i] * cos - x[j] * sin, x[j] * cos + x[i] * sin);
    }
    x
}

fn rope(shape: FullShape) -> Vec<f32> {
    let half = shape.rotary / 2;
    let angles = (0..POSITIONS as u32).flat_map(|position| {
        let of = move |i: usize| angle(shape, position, i);
        (0..half).map(move |i| of(i).cos()).chain((0..half).map(move |i| of(i).sin()))
    });
    angles.map(|x| x as f32).collect()
}

/// A step of some requests, and the pages they read.
struct Step {
    shape: FullShape,
    requests: Vec<(Vec<Token>, Vec<u32>)>,
    /// Slots of live rows, in the order of the rows.
    live: Vec<usize>,
    q: Vec<bf16>,
    k: Vec<bf16>,
    v: Vec<bf16>,
    key: Vec<bf16>,
    value: Vec<bf16>,
}

/// Where channel 0 of (`slot`, `head`) lies in the pages.
fn at(shape: FullShape, slot: usize, head: usize) -> usize {
    ((slot / PAGE * shape.kv_heads + head) * PAGE + slot % PAGE) * shape.key
}

impl Step {
    /// Requests given as spans of (live, tokens): a cached body, or live rows; `gap` positions lie before
    /// each span. Slots are drawn from shuffled pages; bodies of the same length are the same body.
    fn random(rng: &mut StdRng, shape: FullShape, requests: &[&[(bool, usize)]], gap: u32) -> Self {
        let slots: usize =
            requests.iter().flat_map(|r| r.iter()).map(|span| span.1.next_multiple_of(PAGE)).sum();
        let mut pages: Vec<usize> = (0..slots / PAGE + 2).collect();
        pages.shuffle(rng);
        let all = pages.len() * PAGE;
        let mut take = |tokens: usize| -> Vec<usize> {
            let taken: Vec<usize> = pages.drain(..tokens.div_ceil(PAGE)).collect();
            (0..tokens).map(|i| taken[i / PAGE] * PAGE + i % PAGE).collect()
        };
        let FullShape { heads, kv_heads, key: width, .. } = shape;
        let size = all * kv_heads * width;
        // What no token names is NaN, and so are live slots until they are stored.
        let (mut key, mut value) = (vec![bf16::NAN; size], vec![bf16::NAN; size]);
        let mut bodies: Vec<(usize, Vec<usize>)> = Vec::new();
        let (mut list, mut live) = (Vec::new(), Vec::new());
        for request in requests {
            let (mut tokens, mut rows, mut position) = (Vec::new(), Vec::new(), 0);
            for &(is_live, length) in *request {
                position += gap;
                let known =
                    bodies.iter().find(|(l, _)| !is_live && *l == length).map(|(_, slots)| slots.clone());
                let fresh = known.is_none();
                let slots = known.unwrap_or_else(|| take(length));
                for &slot in &slots {
                    if is_live {
                        rows.push(position);
                        live.push(slot);
                    }
                    tokens.push(Token { slot: slot as u32, position });
                    position += 1;
                    for place in (0..kv_heads).map(|head| at(shape, slot, head)).filter(|_| fresh && !is_live)
                    {
                        for i in place..place + width {
                            (key[i], value[i]) = (bf16::from_f32(normal(rng)), bf16::from_f32(normal(rng)));
                        }
                    }
                }
                if fresh && !is_live {
                    bodies.push((length, slots));
                }
            }
            list.push((tokens, rows));
        }
        let mut draw = |len: usize| -> Vec<bf16> { (0..len).map(|_| bf16::from_f32(normal(rng))).collect() };
        let (q, k, v) = (
            draw(live.len() * heads * width),
            draw(live.len() * kv_heads * width),
            draw(live.len() * kv_heads * width),
        );
        Self { shape, requests: list, live, q, k, v, key, value }
    }

    fn run(&self, device: &Device, form: AttentionForm, most: Option<usize>) -> Vec<bf16> {
        let contexts: Vec<Context<'_>> =
            self.requests.iter().map(|(tokens, rows)| Context { tokens, rows }).collect();
        let most = most.map(|tiles| tiles * if form == AttentionForm::Gathered { 96 } else { 64 });
        let gathers = form == AttentionForm::Gathered;
        let mut contexts = Contexts::cut(device, (self.shape, PAGE), &contexts, (most, gathers)).unwrap();
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| Buffer::from_slice(device, x).unwrap());
        let mut key = Buffer::from_slice(device, &self.key).unwrap();
        let mut value = Buffer::from_slice(device, &self.value).unwrap();
        let rope = Buffer::from_slice(device, &rope(self.shape)).unwrap();
        let mut out = Buffer::from_slice(device, &vec![bf16::NAN; self.q.len()]).unwrap();
        store_kv(device, [&k, &v], &contexts, &mut key, &mut value).unwrap();
        let run = Attention {
            q: &q,
            key: &key,
            value: &value,
            contexts: &mut contexts,
            rope: &rope,
            scale: (self.shape.key as f32).powf(-0.5),
            gate: None,
            out: &mut out,
        };
        attention_as(device, run, form).unwrap();
        out.read().unwrap()
    }

    /// f64, row by row: softmax over every token that is not behind the row.
    fn truth(&self) -> Vec<f64> {
        let FullShape { heads, kv_heads, key: width, .. } = self.shape;
        let rotated = |x: &[bf16], position: u32| rotated(self.shape, x, position);
        let (mut key, mut value) = (self.key.clone(), self.value.clone());
        for (row, &slot) in self.live.iter().enumerate() {
            for head in 0..kv_heads {
                let (from, to) = ((row * kv_heads + head) * width, at(self.shape, slot, head));
                key[to..to + width].copy_from_slice(&self.k[from..from + width]);
                value[to..to + width].copy_from_slice(&self.v[from..from + width]);
            }
        }
        let mut out = Vec::with_capacity(self.q.len());
        let mut next = 0;
        for (tokens, rows) in &self.requests {
            let keys: Vec<Vec<Vec<f64>>> = (0..kv_heads)
                .map(|head| {
                    let of = |t: &Token| {
                        rotated(&key[at(self.shape, t.slot as usize, head)..][..width], t.position)
                    };
                    tokens.iter().map(of).collect()
                })
                .collect();
            for &position in rows {
                let seen = tokens.iter().filter(|token| token.position <= position).count();
                for head in 0..heads {
                    let shared = head / (heads / kv_heads);
                    let q = rotated(&self.q[(next * heads + head) * width..][..width], position);
                    let score = |k: &Vec<f64>| {
                        k.iter().zip(&q).map(|(k, q)| k * q).sum::<f64>() / (width as f64).sqrt()
                    };
                    let weights: Vec<f64> = keys[shared][..seen].iter().map(|k| score(k).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    out.extend((0..width).map(|i| {
                        let v = |t: &Token| {
                            f64::from(value[at(self.shape, t.slot as usize, shared) + i].to_f32())
                        };
                        tokens[..seen].iter().zip(&weights).map(|(t, w)| w * v(t)).sum::<f64>() / total
                    }));
                }
                next += 1;
            }
        }
        out
    }

    /// With at most as many tiles in a job.
    fn check(&self, most: Option<usize>) {
        let expected = self.truth();
        on_devices(|device| {
            let out = self.run(device, AttentionForm::Portable, most);
            assert_close("outputs", out.iter().map(|x| x.to_f32()), &expected, bounds::ATTENTION);
            for form in [AttentionForm::Hopper, AttentionForm::Gathered] {
                if device.capability() == Some((9, 0)) {
                    let out = self.run(device, form, most);
                    let what = format!("outputs, {form:?}");
                    assert_close(&what, out.iter().map(|x| x.to_f32()), &expected, bounds::ATTENTION);
                }
            }
            out
        });
    }
}

const fn shape(heads: usize, kv_heads: usize, width: usize, rotary: usize) -> FullShape {
    FullShape { heads, kv_heads, key: width, value: width, rotary }
}

#[test]
fn seams_and_query_attend_over_shared_bodies_at_their_positions() {
    let prompt: &[(bool, usize)] = &[(true, 3), (false, 61), (true, 3), (false, 29), (true, 5)];
    let other: &[(bool, usize)] = &[(true, 1), (false, 29), (true, 2), (false, 61), (true, 1)];
    for shape in [shape(4, 2, 64, 16), shape(6, 2, 128, 128), shape(8, 1, 256, 64)] {
        Step::random(&mut fresh(), shape, &[prompt, other], 700).check(None);
    }
}

#[test]
fn gathered_tokens_lie_rotated_in_whole_tiles() {
    for shape in [shape(2, 2, 64, 16), shape(2, 2, 128, 128), shape(8, 1, 256, 64), shape(1, 1, 64, 0)] {
        let step =
            Step::random(&mut fresh(), shape, &[&[(false, 100), (true, 2)], &[(false, 29), (true, 1)]], 7);
        let contexts: Vec<Context<'_>> =
            step.requests.iter().map(|(tokens, rows)| Context { tokens, rows }).collect();
        on_devices(|device| {
            let mut contexts = Contexts::cut(device, (shape, PAGE), &contexts, (None, true)).unwrap();
            let [key, value] = [&step.key, &step.value].map(|x| Buffer::from_slice(device, x).unwrap());
            let rope = Buffer::from_slice(device, &rope(shape)).unwrap();
            gather_kv(device, [&key, &value], &mut contexts, &rope).unwrap();
            let [keys, values] = contexts.gathered().unwrap().each_ref().map(|x| x.read().unwrap());
            // The first list fills two tiles of 96, the second one.
            let all = 3 * 96;
            let found = |bytes: &[u8], head: usize, number: usize, channel: usize| {
                let tile = (head * all + number / 96 * 96) * shape.key * 2;
                let (token, chunk) = (number % 96, channel / 8);
                let line = tile + chunk / 8 * 96 * 128 + token * 128 + ((chunk % 8) ^ (token % 8)) * 16;
                bf16::from_le_bytes([0, 1].map(|i| bytes[line + channel % 8 * 2 + i])).to_f32()
            };
            for (first, (tokens, _)) in [0, 2 * 96].into_iter().zip(&step.requests) {
                let cached = tokens
                    .iter()
                    .enumerate()
                    .filter(|(_, token)| !step.live.contains(&(token.slot as usize)));
                for ((number, token), head) in
                    cached.flat_map(|token| (0..shape.kv_heads).map(move |h| (token, h)))
                {
                    let from = at(shape, token.slot as usize, head);
                    let row = |bytes| (0..shape.key).map(move |i| found(bytes, head, first + number, i));
                    let expected = rotated(shape, &step.key[from..from + shape.key], token.position);
                    assert_close("key", row(&keys), &expected, bounds::BF16);
                    let value = step.value[from..from + shape.key].iter().map(|x| x.to_f32());
                    assert!(row(&values).eq(value), "another value");
                }
                let beyond = first + tokens.len()..(first + tokens.len()).next_multiple_of(96);
                for number in beyond {
                    let is_zero =
                        |bytes| (0..shape.key).all(|i| found(bytes, shape.kv_heads - 1, number, i) == 0.0);
                    assert!(is_zero(&keys) && is_zero(&values), "what fills a tile must be zero");
                }
            }
            // Live slots are NaN here, which differ from themselves.
            (keys, values)
        });
    }
}

#[test]
fn plain_prefill_is_causal_at_every_length() {
    for (length, shape) in [
        (1, shape(2, 1, 64, 16)),
        (63, shape(2, 2, 64, 0)),
        (129, shape(2, 1, 64, 64)),
        (65, shape(1, 1, 256, 64)),
    ] {
        Step::random(&mut fresh(), shape, &[&[(true, length)]], 0).check(None);
    }
}

#[test]
fn ranges_of_one_row_add_up() {
    let decode: &[(bool, usize)] = &[(false, 200), (true, 1)];
    // Its first rows see nothing of the later ranges.
    let early: &[(bool, usize)] = &[(true, 2), (false, 150), (true, 2)];
    Step::random(&mut fresh(), shape(4, 1, 128, 32), &[decode, early], 0).check(Some(1));
}

#[cfg(feature = "fibers")]
#[test]
fn a_row_that_is_no_token_and_tokens_out_of_order_are_refused() {
    let device = Device::fibers(hypic_cuda::Order::Forward);
    let (a, b) = (Token { slot: 0, position: 4 }, Token { slot: 1, position: 5 });
    let refused = |tokens: &[Token], rows: &[u32], shape: FullShape| {
        Contexts::new(&device, shape, PAGE, &[Context { tokens, rows }]).err().unwrap().to_string()
    };
    let fits = shape(2, 1, 64, 16);
    assert_eq!(
        refused(&[a, b], &[6], fits),
        "the position of a row must be that of a token of its context, not 6"
    );
    assert!(refused(&[b, a], &[4], fits).starts_with("the tokens of a context must be in order"));
    assert!(refused(&[a], &[4], shape(2, 1, 80, 16)).starts_with("the head widths must be"));
    assert!(refused(&[a], &[4], shape(2, 1, 64, 8)).starts_with("the rotated width must be"));
}
