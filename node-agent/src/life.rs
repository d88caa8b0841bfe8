//! One process from its start on: what it does before there is an agent, and then the agent.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hypic_wire::status::Refusal;

use crate::agent::Agent;

/// The stage before the agent, and the agent once its model is loaded and measured.
pub struct Life {
    stage: Mutex<String>,
    agent: OnceLock<Arc<Agent>>,
}

impl Default for Life {
    fn default() -> Self {
        Self { stage: Mutex::new("starting".to_owned()), agent: OnceLock::new() }
    }
}

impl Life {
    /// Says what is done now.
    pub fn enter(&self, stage: String) {
        tracing::info!("{stage}");
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// The agent is there. Said once.
    pub fn begin(&self, agent: Arc<Agent>) {
        self.agent.get_or_init(|| agent);
    }

    /// The agent.
    ///
    /// # Errors
    /// What is done before it is there.
    pub fn agent(&self) -> Result<&Arc<Agent>, Refusal> {
        self.agent.get().ok_or_else(|| {
            let why = self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Refusal::NotServing { why }
        })
    }

    /// Whether the agent serves and the index has admitted it.
    ///
    /// # Errors
    /// What it waits for.
    pub fn ready(&self) -> Result<(), String> {
        let why = |refusal| match refusal {
            Refusal::NotServing { why } => why,
            refusal => refusal.to_string(),
        };
        let agent = self.agent().map_err(why)?;
        agent.ready().map_err(why)?;
        agent.index.admitted()
    }
}
