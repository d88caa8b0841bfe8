use half::bf16;
use hypic_cuda::{Buffer, Context, Contexts, Device, FullShape, Mla, Token, bounds, mla, store_latent};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::run::{assert_close, on_devices};
use crate::truth::{fresh, normal};

const PAGE: usize = 16;
const POSITIONS: usize = 4096;
const KEY: usize = 576;
const LATENT: usize = 512;
const PAIRS: usize = 32;

const fn shape(heads: usize, rotary: usize) -> FullShape {
    FullShape { heads, kv_heads: 1, key: KEY, value: 0, rotary }
}

fn angle(position: usize, pair: usize) -> f64 {
    position as f64 * 1e4f64.powf(-(pair as f64) / PAIRS as f64)
}

/// A request: tokens of a cached body, or live, in order.
struct Request {
    tokens: Vec<Token>,
    rows: Vec<u32>,
}

/// A step of requests over the same body, each between live rows, and the pages they read.
struct Step {
    shape: FullShape,
    requests: Vec<Request>,
    q: Vec<bf16>,
    live: Vec<bf16>,
    pages: Vec<bf16>,
}

impl Step {
    /// Requests given as live rows before and behind a body of `body` tokens; `gap` positions lie before each part.
    fn random(
        rng: &mut StdRng,
        shape: FullShape,
        body: usize,
        requests: &[(usize, usize)],
        gap: usize,
    ) -> Self {
        let live: usize = requests.iter().map(|(before, behind)| before + behind).sum();
        let mut slots: Vec<u32> = (0..(live + body).next_multiple_of(PAGE) as u32 + 32).collect();
        // What no token names is NaN, and so are live slots until they are stored.
        let mut pages = vec![bf16::NAN; slots.len() * KEY];
        slots.shuffle(rng);
        let mut draw = |len: usize| -> Vec<bf16> { (0..len).map(|_| bf16::from_f32(normal(rng))).collect() };
        let bodies: Vec<u32> = slots.drain(..body).collect();
        for &slot in &bodies {
            pages[slot as usize * KEY..][..KEY].copy_from_slice(&draw(KEY));
        }
        let (q, rows) = (draw(live * shape.heads * KEY), draw(live * KEY));
        let request = |&(before, behind): &(usize, usize)| {
            let (mut tokens, mut live, mut position) = (Vec::new(), Vec::new(), 0);
            for (count, is_live) in [(before, true), (body, false), (behind, true)] {
                position += gap as u32;
                let slots = if is_live { slots.drain(..count).collect() } else { bodies.clone() };
                for slot in slots {
                    tokens.push(Token { slot, position });
                    live.extend(is_live.then_some(position));
                    position += 1;
                }
            }
            Request { tokens, rows: live }
        };
        Self { shape, requests: requests.iter().map(request).collect(), q, live: rows, pages }
    }

    fn run(&self, device: &Device, most: Option<usize>) -> Vec<bf16> {
        let contexts: Vec<Context<'_>> =
            self.requests.iter().map(|Request { tokens, rows }| Context { tokens, rows }).collect();
        let mut contexts = Contexts::cut(device, (self.shape, PAGE), &contexts, (most, false)).unwrap();
        let [q, live] = [&self.q, &self.live].map(|x| Buffer::from_slice(device, x).unwrap());
        let mut key = Buffer::from_slice(device, &self.pages).unwrap();
        let angles = (0..POSITIONS).flat_map(|position| {
            let of = move |pair: usize| angle(position, pair);
            (0..PAIRS).map(move |i| of(i).cos() as f32).chain((0..PAIRS).map(move |i| of(i).sin() as f32))
        });
        let rope = Buffer::from_slice(device, &angles.collect::<Vec<_>>()).unwrap();
        let rows = contexts.rows() * self.shape.heads;
        let mut out = Buffer::from_slice(device, &vec![bf16::NAN; rows * LATENT]).unwrap();
        store_latent(device, &live, &contexts, &mut key).unwrap();
        let scale = (KEY as f32).powf(-0.5);
        let run = Mla { q: &q, key: &key, contexts: &mut contexts, rope: &rope, scale, out: &mut out };
        mla(device, run).unwrap();
        out.read().unwrap()
    }

    /// f64, row by row: softmax over every token that is not behind the row.
    fn truth(&self) -> Vec<f64> {
        let rotated = |x: &[bf16], position: u32| -> Vec<f64> {
            let mut x: Vec<f64> = x.iter().map(|x| f64::from(x.to_f32())).collect();
            for i in (0..PAIRS).filter(|_| self.shape.rotary > 0) {
                let (sin, cos) = angle(position as usize, i).sin_cos();
                let (near, far) = (LATENT + i, LATENT + PAIRS + i);
                (x[near], x[far]) = (x[near] * cos - x[far] * sin, x[far] * cos + x[near] * sin);
            }
            x
        };
        let heads = self.shape.heads;
        let mut out = Vec::with_capacity(self.q.len() / KEY * LATENT);
        let mut row = 0;
        for Request { tokens, rows } in &self.requests {
            let first = row;
            let key = |token: &Token| {
                let stored = &self.pages[token.slot as usize * KEY..][..KEY];
                let live = rows.iter().position(|position| *position == token.position);
                rotated(live.map_or(stored, |at| &self.live[(first + at) * KEY..][..KEY]), token.position)
            };
            let keys: Vec<Vec<f64>> = tokens.iter().map(key).collect();
            for &position in rows {
                let seen = tokens.iter().filter(|token| token.position <= position).count();
                for head in 0..heads {
                    let q = rotated(&self.q[(row * heads + head) * KEY..][..KEY], position);
                    let score = |k: &Vec<f64>| {
                        k.iter().zip(&q).map(|(k, q)| k * q).sum::<f64>() / (KEY as f64).sqrt()
                    };
                    let weights: Vec<f64> = keys[..seen].iter().map(|k| score(k).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    let mean =
                        |i: usize| keys.iter().zip(&weights).map(|(k, w)| w * k[i]).sum::<f64>() / total;
                    out.extend((0..LATENT).map(mean));
                }
                row += 1;
            }
        }
        out
    }

    fn check(&self, most: Option<usize>) {
        let expected = self.truth();
        on_devices(|device| {
            let out = self.run(device, most);
            assert_close("outputs", out.iter().map(|x| x.to_f32()), &expected, bounds::ATTENTION);
            out
        });
    }
}

#[test]
fn rows_attend_over_shared_latents_at_their_positions() {
    for (heads, rotary) in [(3, 64), (32, 0), (40, 64)] {
        Step::random(&mut fresh(), shape(heads, rotary), 61, &[(3, 5), (1, 1)], 700).check(None);
    }
}

#[test]
fn latents_alone_are_causal_at_every_length() {
    for (rows, heads, rotary) in [(1, 1, 64), (63, 2, 0), (65, 2, 64), (3, 128, 0)] {
        Step::random(&mut fresh(), shape(heads, rotary), 0, &[(0, rows)], 0).check(None);
    }
}

#[test]
fn ranges_of_one_row_over_latents_add_up() {
    // The first row sees nothing of the later ranges.
    Step::random(&mut fresh(), shape(16, 64), 150, &[(1, 1), (0, 1)], 3).check(Some(64));
}

#[cfg(feature = "fibers")]
#[test]
fn shapes_that_are_not_of_mla_are_refused() {
    let device = Device::fibers(hypic_cuda::Order::Forward);
    let tokens = [Token { slot: 0, position: 0 }];
    let make =
        |shape: FullShape| Contexts::new(&device, shape, PAGE, &[Context { tokens: &tokens, rows: &[0] }]);
    let refused = |shape: FullShape| make(shape).err().unwrap().to_string();
    let fits = shape(16, 64);
    assert_eq!(
        refused(FullShape { key: 512, ..fits }),
        "the head widths must be 576 for keys without values, not 512"
    );
    assert!(refused(FullShape { kv_heads: 2, ..fits }).starts_with("heads of keys without values must be 1"));
    assert!(refused(FullShape { rotary: 32, ..fits }).starts_with("the rotated width must be 0 or 64"));
    assert!(refused(FullShape { heads: 129, ..fits }).starts_with("the heads must be 1 to 128"));
    let mut contexts = make(FullShape { heads: 1, kv_heads: 1, key: 64, value: 64, rotary: 0 }).unwrap();
    let rows = Buffer::zeros(&device, KEY).unwrap();
    let (mut key, mut out) =
        (Buffer::zeros(&device, PAGE * KEY).unwrap(), Buffer::zeros(&device, LATENT).unwrap());
    let error = store_latent(&device, &rows, &contexts, &mut key).unwrap_err().to_string();
    assert_eq!(error, "values beside latents must be 0, not 64");
    let rope = Buffer::zeros(&device, 0).unwrap();
    let run = Mla { q: &rows, key: &key, contexts: &mut contexts, rope: &rope, scale: 1.0, out: &mut out };
    assert!(mla(&device, run).is_err());
}
