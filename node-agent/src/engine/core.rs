//! The engine's state. What it is made of lies below and knows nothing of it; what it does lies above, and `run.rs` on
//! top.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hypic_decode::FairQueue;
use hypic_domain::model::LayerSpec;
use hypic_kernels::op::Device;
use hypic_models::model::Model;

use super::bodies::Bodies;
use super::builds::Build;
use super::edge::Age;
use super::load::Counters;
use super::memory::Memory;
use super::pace::Pace;
use super::scatter::Crew;
use super::sequence::Sequence;
use super::{EngineConfig, Publish};

/// The engine's state. Only its own thread sees it.
pub(super) struct Core<D: Device> {
    pub(super) device: Arc<D>,
    pub(super) model: Arc<dyn Model<D>>,
    pub(super) config: Arc<EngineConfig>,
    pub(super) layers: Arc<[LayerSpec]>,
    pub(super) publish: Publish,
    pub(super) memory: Memory<D>,
    pub(super) bodies: Bodies<D>,
    pub(super) waiting: FairQueue<Sequence<D>>,
    /// Sequences that hold a slot, oldest first.
    pub(super) running: BTreeMap<Age, Sequence<D>>,
    /// Oldest first.
    pub(super) builds: Vec<Build<D>>,
    pub(super) counters: Counters,
    pub(super) pace: Arc<Mutex<Pace>>,
    pub(super) crew: Crew<D>,
}
