//! Builds of 64 x 512 tokens with all heads live, from bodies of row 8, in the portable forms: token by token and in chunks.

use hypic_cuda::{Device, Family, Result, Sequence, Sequences, Shape, recurrence, recurrence_chunks};

use crate::data::{Built, Form, Layer, SEGMENTS, error};
use crate::{Figures, note, time};

const LENGTH: usize = 512;
const BEFORE_BODY: usize = 8;

pub(crate) fn run(device: &Device, figures: &mut Figures) -> Result<()> {
    for (key, family, width) in [
        ("gdn_64", Family::Gdn, 64),
        ("gdn_128", Family::Gdn, 128),
        ("kda_64", Family::Kda, 64),
        ("kda_128", Family::Kda, 128),
        ("lightning_128", Family::Retention, 128),
    ] {
        let shape = Shape { heads: 32, key_heads: 32, width };
        let layer = Layer::of(device, family, shape, SEGMENTS * LENGTH)?;
        let sequences = Sequences::new(
            device,
            &[Sequence { rows: LENGTH, before_body: BEFORE_BODY, fresh: true }; SEGMENTS],
        )?;
        let mut built = [Built::empty(device, shape, LENGTH)?, Built::empty(device, shape, LENGTH)?];
        for (built, (form, name)) in
            built.iter_mut().zip([(recurrence as Form, "tokens"), (recurrence_chunks as Form, "chunks")])
        {
            let ms = time(device, 1, &mut [&mut || built.run(device, form, &layer, &sequences)])?;
            note(figures, format!("{key}_{name}_ms"), ms);
        }
        let [tokens, chunks] = built;
        for (part, found, expected) in [
            ("output", &chunks.out, &tokens.out),
            ("state", &chunks.state, &tokens.state),
            ("t", &chunks.transition, &tokens.transition),
        ] {
            if part == "t" && family == Family::Retention {
                continue;
            }
            let expected = expected.read()?;
            let wide = expected.iter().map(|&x| f64::from(x));
            note(figures, format!("{key}_{part}_error"), error(&found.read()?, wide));
        }
    }
    Ok(())
}
