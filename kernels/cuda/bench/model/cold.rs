//! A cold prompt: all of its segments built in steps, on one GPU or on two, then composed with a query.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use anyhow::{Result, anyhow};
use hypic_domain::logits::Need;
use hypic_domain::tuple::TupleFormat;
use hypic_kernels::op::{Device, Export};
use hypic_kernels::plan::{BodyLayers, Plan, Record, Run, RunOp};
use hypic_models::model::Memory;

use super::runs;
use super::{Bench, Body, Gpu, PAGE, QUERY, SEAM, SEGMENT, SEGMENTS, check_finite};

type Recording = Arc<Mutex<<Gpu as Device>::Recording>>;

/// One layer of a segment that was built.
struct Built {
    segment: usize,
    layer: usize,
    parts: Arc<<Gpu as Device>::BuiltLayer>,
}

/// Rows of steps that are compared.
pub(crate) const STEPS: [usize; 4] = [2048, 4096, 8192, SEGMENTS * SEGMENT];

/// As a tuple's usual format says.
pub(crate) const SKIP_BELOW: f32 = 1e-3;

impl Bench {
    fn build_run(&self, place: usize, skip_below: Option<f32>) -> Result<(Run<Gpu>, Recording)> {
        let rows = place * SEGMENT..(place + 1) * SEGMENT;
        let recording = Arc::new(Mutex::new(self.device.recording(&self.loaded.spec)?));
        let record = skip_below.map(|skip_below| Record {
            recording: Arc::clone(&recording),
            body: rows.start + SEAM..rows.end,
            whole: Some(skip_below),
        });
        let context = runs::live(place * SEGMENT / PAGE, SEGMENT);
        let run = Run { rows: rows.clone(), slot: place, context, ops: vec![RunOp::Rows(rows)], record };
        Ok((run, recording))
    }

    /// Builds `segments` in one step and gives out each layer as it is done. Without a threshold nothing is recorded.
    fn build_step(
        &mut self,
        segments: Range<usize>,
        skip_below: Option<f32>,
        give: &mut dyn FnMut(&mut Self, Built) -> Result<()>,
    ) -> Result<()> {
        let spec = self.loaded.spec.clone();
        let (mut runs, mut recordings) = (Vec::new(), Vec::new());
        for place in 0..segments.len() {
            self.device.reset_slot(&mut self.states, place)?;
            let (run, recording) = self.build_run(place, skip_below)?;
            runs.push(run);
            recordings.push(recording);
        }
        let token = |row: usize| ((segments.start * SEGMENT + row) * 7919 % spec.vocab) as u32;
        let plan = Plan { ids: (0..segments.len() * SEGMENT).map(token).collect(), runs };
        let mut x = self.loaded.model.embed(&self.device, &plan)?;
        for layer in 0..spec.layers.len() {
            let memory = Memory { states: &mut self.states, pages: &mut self.pages };
            x = self.loaded.model.layer(&self.device, layer, &plan, memory, x)?;
            let Some(skip_below) = skip_below else { continue };
            let format = self.device.format(&TupleFormat { skip_below, ..TupleFormat::default() });
            for (place, (run, recording)) in plan.runs.iter().zip(&recordings).enumerate() {
                let recording = recording.lock().map_err(|_| anyhow!("a step died"))?;
                let built = self.device.finish(&Export {
                    layer,
                    spec: &spec,
                    recording: &*recording,
                    states: &self.states,
                    slot: place,
                    pages: &self.pages,
                    context: &run.context,
                    body: SEGMENT - SEAM,
                    format,
                })?;
                give(self, Built { segment: segments.start + place, layer, parts: Arc::new(built) })?;
            }
        }
        Ok(())
    }

    /// All segments in steps of `rows` rows, without the query.
    pub(crate) fn builds(&mut self, rows: usize, skip_below: Option<f32>) -> Result<f64> {
        self.device.wait()?;
        let begun = Instant::now();
        let each = rows / SEGMENT;
        for first in (0..SEGMENTS).step_by(each) {
            self.build_step(first..first + each, skip_below, &mut |_, _| Ok(()))?;
        }
        self.device.wait()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    fn adopt(&mut self, bodies: &[Body], built: &Built) -> Result<()> {
        let spec = &self.loaded.spec;
        let parts = self.device.adopt(built.layer, spec, &mut self.pages, &built.parts)?;
        bodies[built.segment].0.arrive(built.layer, parts);
        Ok(())
    }

    fn no_bodies(&self) -> Vec<Body> {
        let layers = self.loaded.spec.layers.len();
        (0..SEGMENTS).map(|_| (Arc::new(BodyLayers::empty(layers)), SEGMENT - SEAM)).collect()
    }

    fn is_here(bodies: &[Body], layer: usize) -> bool {
        bodies.iter().all(|(layers, _)| layers.layer(layer).is_some())
    }

    /// The prompt of all bodies with a query, layer by layer; `await_layer` brings the next one.
    fn compose_as_they_come(
        &mut self,
        bodies: &[Body],
        await_layer: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        self.device.reset_slot(&mut self.states, 0)?;
        let runs = self.warm_runs(bodies, SEGMENTS);
        let rows = SEGMENTS * SEAM + QUERY;
        let plan = Plan { ids: self.ids(rows), runs };
        let x = self.by_layers(&plan, await_layer)?;
        check_finite(&self.loaded.model.logits(&self.device, &x, &[(rows - 1, Need::largest(1))])?)
    }

    /// Everything on this GPU.
    pub(crate) fn cold(&mut self, rows: usize) -> Result<f64> {
        self.device.wait()?;
        let (bodies, begun, each) = (self.no_bodies(), Instant::now(), rows / SEGMENT);
        for first in (0..SEGMENTS).step_by(each) {
            let adopt = &mut |bench: &mut Self, built| bench.adopt(&bodies, &built);
            self.build_step(first..first + each, Some(SKIP_BELOW), adopt)?;
        }
        self.compose_as_they_come(&bodies, |_, _| Ok(()))?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    /// With a second GPU that builds: whoever is free takes the next step, and this one composes as far as layers have
    /// come. Returns the time and how many steps the second took.
    pub(crate) fn cold_with(&mut self, worker: &mut Self, rows: usize) -> Result<(f64, usize)> {
        self.device.wait()?;
        worker.device.wait()?;
        let (bodies, begun, each) = (self.no_bodies(), Instant::now(), rows / SEGMENT);
        let next = AtomicUsize::new(0);
        let take = || {
            let first = next.fetch_add(each, Ordering::Relaxed);
            (first < SEGMENTS).then_some(first..first + each)
        };
        let (sender, finished) = mpsc::channel();
        let taken = std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                let (sender, mut taken) = (sender, 0);
                while let Some(segments) = take() {
                    let give = &mut |_: &mut Self, built| Ok(sender.send(built)?);
                    worker.build_step(segments, Some(SKIP_BELOW), give)?;
                    taken += 1;
                }
                Ok::<_, anyhow::Error>(taken)
            });
            while let Some(segments) = take() {
                let give = &mut |bench: &mut Self, built: Built| {
                    bench.adopt(&bodies, &built)?;
                    finished.try_iter().try_for_each(|built| bench.adopt(&bodies, &built))
                };
                self.build_step(segments, Some(SKIP_BELOW), give)?;
            }
            let composed = self.compose_as_they_come(&bodies, |bench, layer| {
                finished.try_iter().try_for_each(|built| bench.adopt(&bodies, &built))?;
                while !Self::is_here(&bodies, layer) {
                    bench.adopt(&bodies, &finished.recv()?)?;
                }
                Ok(())
            });
            // If it failed, that says why.
            let taken = working.join().map_err(|_| anyhow!("the second GPU's thread died"))??;
            composed.map(|()| taken)
        })?;
        Ok((begun.elapsed().as_secs_f64() * 1e3, taken))
    }
}
