use crate::launch::Launch;
use crate::{Buffer, Device, Error, Result};

/// Moves states built at position 0 to `positions`, one per state, by rotating the key axis: `S <- R(p) S`
/// (Ring, DESIGN §3).
///
/// `state` is `[states, width, width]`; key rows `i` and `i + rotary / 2` form a pair with frequency
/// `frequencies[i]`. The angles are computed in f64.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn state_rotate(
    device: &Device,
    state: &mut Buffer<f32>,
    width: usize,
    positions: &[u64],
    frequencies: &[f64],
) -> Result<()> {
    let rotary = 2 * frequencies.len();
    Error::unless(width <= 128 && rotary <= width, "the rotary width", format!("at most {width}"), rotary)?;
    let size = positions.len() * width * width;
    Error::unless(state.len() == size, "the states", size, state.len())?;
    let mut table = Vec::with_capacity(positions.len() * rotary);
    for &position in positions {
        table.extend(frequencies.iter().map(|f| (position as f64 * f).cos() as f32));
        table.extend(frequencies.iter().map(|f| (position as f64 * f).sin() as f32));
    }
    let table = Buffer::from_slice(device, &table)?;
    Launch::new(device, "state_rotate", [frequencies.len(), positions.len(), 1], 128)
        .write(state)
        .read(&table)
        .int(width)
        .int(rotary)
        .run()
}
