use crate::launch::Launch;
use crate::memory::{Fresh, Table};
use crate::rows::table_rows;
use crate::{Buffer, Device, Error, Result, TopLogits};

const THREADS: usize = 256;
/// Logits of which a block adds up the weights; as in the kernel.
const PART: usize = 2048;
/// What a grid may have beside its first axis.
const MOST_DRAWS: usize = 65_535;

/// A draw from one row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The row.
    pub row: usize,
    /// What logits are divided by; above 0.
    pub temperature: f32,
    /// The random number, in [0, 1): how much of the distribution lies before the token drawn.
    pub uniform: f64,
}

/// An addend on one logit; as in the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The row.
    pub row: u32,
    /// The token.
    pub token: u32,
    /// The addend.
    pub addend: f32,
}

/// Adds to `logits`, `[rows, width]`; tokens that a row does not have are passed over. `changes` name a token of a row once.
///
/// # Errors
/// [`Error::CheckShape`] when a row is not there or the sizes do not fit; [`Error::CallDriver`] when a launch fails.
pub fn change_logits(
    device: &Device,
    logits: &mut Buffer<f32>,
    width: usize,
    changes: &[Change],
) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let rows = table_rows(logits, width, 1)?;
    let most = changes.iter().map(|change| change.row as usize).max().unwrap_or(0);
    Error::unless(most < rows, "the row of a change", format!("one of {rows}"), most)?;
    let words: Vec<u32> =
        changes.iter().flat_map(|change| [change.row, change.token, change.addend.to_bits()]).collect();
    let words = Buffer::from_slice(device, &words)?;
    Launch::new(device, "change_logits", [changes.len().div_ceil(THREADS), 1, 1], THREADS)
        .read(&words)
        .write(logits)
        .int(width)
        .int(changes.len())
        .run()
}

/// What was drawn.
pub struct DrawnLogits {
    /// The tokens, `[draws]`; of a row with a logit that is not finite any one.
    pub tokens: Buffer<u32>,
    /// Their logits, `[draws]`.
    pub values: Buffer<f32>,
    /// `Σ exp((logit - largest) / temperature)` of their rows, `[draws]`.
    pub weights: Buffer<f64>,
}

/// Draws tokens from rows of `logits`, `[rows, width]`, of which `top` are the largest.
///
/// A token is the first at which the sum of `exp((logit - largest) / temperature)`, in the order of tokens, is over
/// `uniform` of the whole; sums are in f64. The plain form is `hypic_domain::logits::draw`: where the sums of both
/// differ by rounding, and only there, so may the tokens.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, or a row, temperature or number is out of range;
/// [`Error::CallDriver`] when a launch fails.
pub fn draw_logits(
    device: &Device,
    logits: &Buffer<f32>,
    width: usize,
    top: &TopLogits,
    draws: &[Draw],
) -> Result<DrawnLogits> {
    let (rows, most) = (top.rows(), top.most);
    let found = table_rows(logits, width, most)?;
    Error::unless(found == rows, "the largest logits", format!("of {found} rows"), rows)?;
    Error::unless(draws.len() <= MOST_DRAWS, "draws", format!("at most {MOST_DRAWS}"), draws.len())?;
    let fits = |draw: &Draw| {
        draw.row < rows
            && draw.temperature > 0.0
            && draw.temperature.is_finite()
            && (0.0..1.0).contains(&draw.uniform)
    };
    if let Some(draw) = draws.iter().find(|draw| !fits(draw)) {
        let right =
            format!("from one of {rows} rows, by a finite temperature above 0 and a number in [0, 1)");
        Error::unless(false, "a draw", right, format!("{draw:?}"))?;
    }
    let number: Vec<u32> = draws.iter().map(|draw| draw.row as u32).collect();
    let by: Vec<f64> = draws.iter().flat_map(|draw| [f64::from(draw.temperature), draw.uniform]).collect();
    let (number, by) = (Table::new(device, &number)?, Buffer::from_slice(device, &by)?);
    let parts = width.div_ceil(PART);
    let mut sums: Buffer<f64> = Buffer::fresh(device, draws.len() * parts, Fresh::Anything)?;
    let mut tokens = Buffer::fresh(device, draws.len(), Fresh::Anything)?;
    let mut values = Buffer::fresh(device, draws.len(), Fresh::Anything)?;
    let mut weights = Buffer::fresh(device, draws.len(), Fresh::Anything)?;
    Launch::new(device, "draw_sums", [parts, draws.len(), 1], THREADS)
        .read(logits)
        .read(&top.found)
        .read(&number)
        .read(&by)
        .write(&mut sums)
        .int(width)
        .int(most)
        .run()?;
    Launch::new(device, "draw_tokens", [draws.len(), 1, 1], THREADS)
        .read(logits)
        .read(&top.found)
        .read(&number)
        .read(&by)
        .read(&sums)
        .write(&mut tokens)
        .write(&mut values)
        .write(&mut weights)
        .int(width)
        .int(most)
        .int(parts)
        .run()?;
    Ok(DrawnLogits { tokens, values, weights })
}
