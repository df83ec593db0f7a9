//! `plimsoll._native`: one function, which runs a command line in this process. What Python sees beside it is
//! written in Python.

use plimsoll::{Answer, Call, Stop};
use pyo3::{exceptions::PyRuntimeError, prelude::*};
use std::{
    ffi::OsString,
    io,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// How often a long call looks whether the interpreter has a signal to handle.
const LOOK: Duration = Duration::from_millis(50);

/// Stack of the thread that runs the verb: as much as a main thread has.
const STACK_BYTES: usize = 8 << 20;

/// Runs one command line; answers its exit code, stdout and stderr. The interpreter is free meanwhile.
#[pyfunction]
#[pyo3(signature = (args, stdin=None))]
fn invoke(
    py: Python<'_>,
    args: Vec<OsString>,
    stdin: Option<Vec<u8>>,
) -> PyResult<(u8, String, String)> {
    let stop = Stop::default();
    let mut call = Call::new(args).until(stop.clone());
    if let Some(text) = stdin {
        call = call.stdin(text);
    }
    let Answer { code, stdout, stderr } = py.detach(|| watched(call, &stop))?;
    Ok((code, stdout, stderr))
}

/// Runs the call on a thread of its own while this one, which may be the main one, lets the interpreter handle
/// its signals. What a handler raises ends the call and is raised once it has ended.
fn watched(call: Call, stop: &Stop) -> PyResult<Answer> {
    let (send, receive) = mpsc::channel();
    let verb = thread::Builder::new().name("plimsoll".to_owned()).stack_size(STACK_BYTES);
    // The receiver outlives the thread.
    let verb = verb.spawn(move || drop(send.send(call.answer()))).map_err(cannot_start)?;
    let mut raised = Ok(());
    let answer = loop {
        match receive.recv_timeout(LOOK) {
            Ok(answer) => break Some(answer),
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) if raised.is_err() => {}
            Err(RecvTimeoutError::Timeout) => {
                raised = Python::attach(|py| py.check_signals());
                if raised.is_err() {
                    stop.ask();
                }
            }
        }
    };
    let joined = verb.join();
    raised?;
    match (answer, joined) {
        (Some(answer), Ok(())) => Ok(answer),
        // A defect; the message was printed by the thread.
        _ => Err(PyRuntimeError::new_err("plimsoll failed; please report what stands on stderr")),
    }
}

fn cannot_start(error: io::Error) -> PyErr {
    error.into()
}

/// The native half of the package `plimsoll`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(invoke, module)?)
}
