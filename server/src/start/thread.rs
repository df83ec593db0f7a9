//! The engine's thread between the plan and the end. What was opened for the plan lives there from the beginning:
//! a device's context stays on one thread.

use std::{
    sync::mpsc::{Sender, channel},
    thread::{Builder, JoinHandle},
};

use plimsoll_backend_host::model::LoadError;
use plimsoll_checkpoint::CheckpointError;

use super::{PlanError, StartError, lend::Look};
use crate::{
    engine::{MemoryRow, Model},
    plan::MemoryPlan,
};

/// A model whose memory is decided. It does not leave its thread.
pub(super) struct Opened {
    /// What it will hold.
    pub(super) plan: MemoryPlan,
    /// Reads the weights.
    pub(super) load: Load,
}

/// Takes what is not yet taken and reads the weights.
pub(super) type Load = Box<dyn FnOnce() -> Result<Ready, LoadFailure>>;

/// A model that is loaded.
pub(super) struct Ready {
    pub(super) model: Box<dyn Model>,
    /// What its parts hold, by the names of the plan.
    pub(super) held: Vec<MemoryRow>,
    /// Reads what is left for others.
    pub(super) room: Look,
}

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadFailure {
    /// On the host.
    #[error(transparent)]
    Host(LoadError<CheckpointError>),
    /// On devices: the weights, or a device that does not hold what it is to hold.
    #[error("{0}")]
    Device(String),
    /// A device that is gone.
    #[error("{0}")]
    Lost(String),
}

/// What the thread does once it is told to go on.
type Job = Box<dyn FnOnce(Load) + Send>;

/// A thread that holds what was opened, and waits. Dropping it gives everything back before it returns.
#[derive(Debug)]
pub(super) struct Waiting {
    go: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Opens on a thread of its own and waits for the plan.
///
/// # Errors
///
/// What `open` says, or that there is no thread.
pub(super) fn open<F>(open: F) -> Result<(MemoryPlan, Waiting), StartError>
where
    F: FnOnce() -> Result<Opened, PlanError> + Send + 'static,
{
    let (tell, told) = channel();
    let (go, goes) = channel::<Job>();
    let life = move || match open() {
        // Who does not listen any more has gone with all the rest.
        Err(error) => drop(tell.send(Err(error))),
        Ok(Opened { plan, load }) => {
            if tell.send(Ok(plan)).is_ok()
                && let Ok(job) = goes.recv()
            {
                job(load);
            }
        }
    };
    let thread = Builder::new().name("engine".to_owned()).spawn(life);
    let thread = thread.map_err(StartError::Thread)?;
    let waiting = Waiting { go: Some(go), thread: Some(thread) };
    match told.recv() {
        Ok(plan) => Ok((plan?, waiting)),
        Err(_) => Err(StartError::Panic),
    }
}

impl Waiting {
    /// Lets the thread go on with `job`.
    ///
    /// # Errors
    ///
    /// [`StartError::Panic`] where it is gone.
    pub(super) fn start(mut self, job: Job) -> Result<JoinHandle<()>, StartError> {
        let go = self.go.take().ok_or(StartError::Panic)?;
        go.send(job).map_err(|_| StartError::Panic)?;
        self.thread.take().ok_or(StartError::Panic)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.go.take());
        if let Some(thread) = self.thread.take() {
            // A panic there is an error of who waits for its word.
            drop(thread.join());
        }
    }
}
