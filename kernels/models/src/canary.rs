//! A first look at a freshly loaded model: does it predict text at all?

use hypic_kernels::op::{Device, OpError};
use hypic_kernels::plan::{Context, Plan, Run, RunOp};

use crate::model::{Memory, Model};

/// Perplexity per token of `ids[from..]` behind `ids[..from]`, from a fresh state: an answer behind its prompt, as
/// chat models are trained on answers only. A head that is not the model's, or a table read wrongly, gives
/// about the vocabulary's size; a working model stays far below it on text of its kind.
///
/// # Errors
/// Those of the device; `from` must leave at least one token on either side.
pub fn perplexity<D: Device>(
    model: &dyn Model<D>,
    device: &D,
    ids: &[u32],
    from: usize,
) -> Result<f64, OpError> {
    if from == 0 || from >= ids.len() {
        return Err(OpError::Shape {
            op: "perplexity",
            expected: format!("a first judged token inside {} tokens", ids.len()),
            found: from.to_string(),
        });
    }
    let logits = prefill(model, device, ids, from - 1)?;
    let vocab = model.spec().vocab;
    let nats = logits.chunks_exact(vocab).zip(&ids[from..]).map(|(row, &next)| {
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - best).exp()).sum();
        sum.ln() - f64::from(row[next as usize] - best)
    });
    Ok((nats.sum::<f64>() / (ids.len() - from) as f64).exp())
}

/// Logits of the rows from `first` on, in memory of its own.
fn prefill<D: Device>(
    model: &dyn Model<D>,
    device: &D,
    ids: &[u32],
    first: usize,
) -> Result<Vec<f32>, OpError> {
    let rows = ids.len();
    let mut states = device.states(model.spec(), 1)?;
    let mut pages = device.pages(model.spec(), 1, rows)?;
    device.reset_slot(&mut states, 0)?;
    let run = Run {
        rows: 0..rows,
        slot: 0,
        context: Context { pages: vec![0], live: (0..rows as u32).collect(), bodies: Vec::new() },
        ops: vec![RunOp::Rows(0..rows)],
        record: None,
    };
    let plan = Plan { ids: ids.to_vec(), runs: vec![run] };
    let mut x = model.embed(device, &plan)?;
    for layer in 0..model.spec().layers.len() {
        let memory = Memory { states: &mut states, pages: &mut pages };
        x = model.layer(device, layer, &plan, memory, x)?;
    }
    model.all_logits(device, &x, &(first..rows).collect::<Vec<_>>())
}
