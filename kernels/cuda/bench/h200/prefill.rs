//! GDN core of 64 x 512 tokens with outputs and summaries, at several shares of live heads.

use half::bf16;
use hypic_cuda::{
    Buffer, ChunkScratch, Device, GdnChunks, Places, Result, Sequence, Sequences, StoredAs, gdn_chunks,
    unpack_tiles,
};

use crate::compose::live_heads;
use crate::data::{Layer, SEGMENTS, SHAPE, build, error};
use crate::{Figures, note, time};

const LENGTH: usize = 512;

struct Set {
    layer: Layer,
    arena: Buffer<u8>,
    state: Buffer<f32>,
    out: Buffer<bf16>,
}

impl Set {
    fn new(device: &Device) -> Result<Self> {
        let (pairs, layer) = (SEGMENTS * SHAPE.heads, Layer::random(device, SEGMENTS * LENGTH)?);
        Ok(Self {
            arena: Buffer::from_slice(device, &vec![0xffu8; pairs * 4 * SHAPE.square()])?,
            state: Buffer::from_slice(device, &vec![f32::NAN; pairs * SHAPE.square()])?,
            out: Buffer::from_slice(device, &vec![bf16::NAN; layer.v.len()])?,
            layer,
        })
    }

    fn run(
        &mut self,
        device: &Device,
        sequences: &Sequences,
        places: &Places,
        scratch: &mut ChunkScratch,
    ) -> Result<()> {
        let run = GdnChunks {
            rows: self.layer.rows(),
            sequences,
            places,
            arena: &mut self.arena,
            state: &mut self.state,
            out: &mut self.out,
            scratch,
        };
        gdn_chunks(device, run)
    }
}

/// Places of all `S`, and of `T` where `live` says so.
fn places(device: &Device, live: Option<&[bool]>) -> Result<Places> {
    let size = (SHAPE.square() * 2) as u64;
    let list: Vec<_> = (0..SEGMENTS * SHAPE.heads)
        .map(|i| {
            (
                live.filter(|live| live[i % SHAPE.heads]).map(|_| 2 * i as u64 * size),
                Some((2 * i as u64 + 1) * size),
            )
        })
        .collect();
    Places::new(device, SHAPE.width, StoredAs::F16, &list)
}

pub(crate) fn run(device: &Device, figures: &mut Figures) -> Result<()> {
    let mut sets = [Set::new(device)?, Set::new(device)?];
    for before_body in [0, 8] {
        let sequences =
            Sequences::new(device, &[Sequence { rows: LENGTH, before_body, fresh: true }; SEGMENTS])?;
        let mut scratch = ChunkScratch::new(device, SHAPE, &sequences)?;
        let suffix = if before_body == 0 { String::new() } else { format!("_body{before_body}") };
        let all = places(device, Some(&[true; SHAPE.heads]))?;

        let set = &mut sets[0];
        set.run(device, &sequences, &all, &mut scratch)?;
        let size = SEGMENTS * SHAPE.heads * SHAPE.square();
        let (mut t, mut s) = (Buffer::zeros(device, size)?, Buffer::zeros(device, size)?);
        unpack_tiles(device, &all, &set.arena, [&mut t, &mut s])?;
        // The plain form, itself checked against f64 by the tests, is the reference here.
        let expected = build(device, &set.layer, LENGTH, before_body)?;
        let out: Vec<f32> = set.out.read()?.iter().map(|x| x.to_f32()).collect();
        for (part, found, expected) in [
            ("output", out, &expected.out),
            ("state", s.read()?, &expected.state),
            ("t", t.read()?, &expected.transition),
        ] {
            let expected = expected.read()?;
            note(
                figures,
                format!("gdn_{part}_error{suffix}"),
                error(&found, expected.iter().map(|&x| f64::from(x))),
            );
        }

        let [a, b] = &mut sets;
        let mut timed = |live: Option<&[bool]>| -> Result<f64> {
            let places = places(device, live)?;
            // Both sets share the working memory, as the layers of a model do.
            let scratch = std::cell::RefCell::new(&mut scratch);
            time(
                device,
                3,
                &mut [&mut || a.run(device, &sequences, &places, &mut scratch.borrow_mut()), &mut || {
                    b.run(device, &sequences, &places, &mut scratch.borrow_mut())
                }],
            )
        };
        let without = timed(None)?;
        note(figures, format!("gdn_ms{suffix}"), without);
        for share in [0.05, 0.2, 0.6, 1.0] {
            let ms = timed(Some(&live_heads(share)))?;
            note(figures, format!("gdn_t_ms{suffix}_live{}", (100.0 * share) as u32), ms);
            if share == 1.0 {
                note(figures, format!("gdn_t_ms{suffix}"), ms);
                note(figures, format!("t_extra_ms{suffix}"), ms - without);
            }
        }
    }
    Ok(())
}
