//! Streams, events, copies, and captured graphs of the driver API.

use super::memory::{PinnedMemory, Span};
use super::{Code, Driver, LoadError, check, symbol};
use std::ffi::{c_int, c_uchar, c_uint, c_void};

type Raw = *mut c_void;

/// A stream; destroying it uses it up.
#[derive(Debug)]
pub(crate) struct Stream(Raw);

/// An event that measures time.
#[derive(Debug)]
pub(crate) struct Event(Raw);

/// A captured graph and its executable form.
#[derive(Debug)]
pub(crate) struct Graph {
    graph: Raw,
    executable: Raw,
}

type Copy3 = unsafe extern "C" fn(u64, *const c_void, usize, Raw) -> c_int;

/// Functions of streams and graphs; all need a current context.
#[derive(Clone, Copy)]
pub(crate) struct StreamApi {
    create: unsafe extern "C" fn(*mut Raw, c_uint) -> c_int,
    destroy: unsafe extern "C" fn(Raw) -> c_int,
    synchronize: unsafe extern "C" fn(Raw) -> c_int,
    begin_capture: unsafe extern "C" fn(Raw, c_int) -> c_int,
    end_capture: unsafe extern "C" fn(Raw, *mut Raw) -> c_int,
    instantiate: unsafe extern "C" fn(*mut Raw, Raw, u64) -> c_int,
    upload: unsafe extern "C" fn(Raw, Raw) -> c_int,
    launch: unsafe extern "C" fn(Raw, Raw) -> c_int,
    exec_destroy: unsafe extern "C" fn(Raw) -> c_int,
    graph_destroy: unsafe extern "C" fn(Raw) -> c_int,
    event_create: unsafe extern "C" fn(*mut Raw, c_uint) -> c_int,
    event_record: unsafe extern "C" fn(Raw, Raw) -> c_int,
    event_elapsed: unsafe extern "C" fn(*mut f32, Raw, Raw) -> c_int,
    event_destroy: unsafe extern "C" fn(Raw) -> c_int,
    memset: unsafe extern "C" fn(u64, c_uchar, usize, Raw) -> c_int,
    copy_in: Copy3,
    copy_out: unsafe extern "C" fn(*mut c_void, u64, usize, Raw) -> c_int,
}

/// `CU_STREAM_NON_BLOCKING`: no implicit order with the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: other threads may go on allocating.
const THREAD_LOCAL: c_int = 1;

impl StreamApi {
    /// Finds the symbols; `_driver` says that the library is loaded.
    pub(crate) fn load(_driver: &Driver) -> Result<Self, LoadError> {
        Ok(Self {
            create: symbol("cuStreamCreate")?,
            destroy: symbol("cuStreamDestroy_v2")?,
            synchronize: symbol("cuStreamSynchronize")?,
            begin_capture: symbol("cuStreamBeginCapture_v2")?,
            end_capture: symbol("cuStreamEndCapture")?,
            instantiate: symbol("cuGraphInstantiateWithFlags")?,
            upload: symbol("cuGraphUpload")?,
            launch: symbol("cuGraphLaunch")?,
            exec_destroy: symbol("cuGraphExecDestroy")?,
            graph_destroy: symbol("cuGraphDestroy")?,
            event_create: symbol("cuEventCreate")?,
            event_record: symbol("cuEventRecord")?,
            event_elapsed: symbol("cuEventElapsedTime")?,
            event_destroy: symbol("cuEventDestroy_v2")?,
            memset: symbol("cuMemsetD8Async")?,
            copy_in: symbol("cuMemcpyHtoDAsync_v2")?,
            copy_out: symbol("cuMemcpyDtoHAsync_v2")?,
        })
    }

    /// A stream of its own.
    pub(crate) fn create(&self) -> Result<Stream, Code> {
        let mut stream: Raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.create)(&raw mut stream, NON_BLOCKING) })?;
        Ok(Stream(stream))
    }

    /// Destroys a stream.
    pub(crate) fn destroy(&self, stream: Stream) -> Result<(), Code> {
        // SAFETY: the stream came from `create` and is used up here.
        check(unsafe { (self.destroy)(stream.0) })
    }

    /// Waits until all work of a stream is done; answers with its error, if it had one.
    pub(crate) fn synchronize(&self, stream: &Stream) -> Result<(), Code> {
        // SAFETY: the stream is alive.
        check(unsafe { (self.synchronize)(stream.0) })
    }

    /// Records the work that `body` puts on the stream, and makes it executable. When anything
    /// fails, the capture is ended and nothing stays.
    pub(crate) fn capture(
        &self,
        stream: &Stream,
        body: impl FnOnce() -> Result<(), Code>,
    ) -> Result<Graph, Code> {
        // SAFETY: the stream is alive and not capturing.
        check(unsafe { (self.begin_capture)(stream.0, THREAD_LOCAL) })?;
        let recorded = body();
        let mut graph: Raw = std::ptr::null_mut();
        // SAFETY: matches the begin above; the pointer is valid.
        let ended = check(unsafe { (self.end_capture)(stream.0, &raw mut graph) });
        let made = recorded.and(ended).and_then(|()| self.executable(graph));
        match made {
            Ok(executable) => Ok(Graph { graph, executable }),
            Err(code) => {
                if !graph.is_null() {
                    // SAFETY: the graph came from the capture and nothing else holds it.
                    let _ = check(unsafe { (self.graph_destroy)(graph) });
                }
                Err(code)
            }
        }
    }

    fn executable(&self, graph: Raw) -> Result<Raw, Code> {
        let mut executable: Raw = std::ptr::null_mut();
        // SAFETY: the graph is alive; the pointer is valid; no flags.
        check(unsafe { (self.instantiate)(&raw mut executable, graph, 0) })?;
        Ok(executable)
    }

    /// Puts a graph's device side in place, so that its cost shows before the first launch.
    pub(crate) fn upload(&self, graph: &Graph, stream: &Stream) -> Result<(), Code> {
        // SAFETY: both are alive.
        check(unsafe { (self.upload)(graph.executable, stream.0) })
    }

    /// Launches a graph. The memory of its nodes must still be held.
    pub(crate) fn launch(&self, graph: &Graph, stream: &Stream) -> Result<(), Code> {
        // SAFETY: both are alive; the nodes write device memory only.
        check(unsafe { (self.launch)(graph.executable, stream.0) })
    }

    /// Destroys a graph.
    pub(crate) fn destroy_graph(&self, graph: Graph) -> Result<(), Code> {
        // SAFETY: both parts came from `capture` and are used up here.
        let executable = check(unsafe { (self.exec_destroy)(graph.executable) });
        // SAFETY: as above.
        let graph = check(unsafe { (self.graph_destroy)(graph.graph) });
        executable.and(graph)
    }

    /// An event that measures time.
    pub(crate) fn event(&self) -> Result<Event, Code> {
        let mut event: Raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid; flags 0 keep the timing.
        check(unsafe { (self.event_create)(&raw mut event, 0) })?;
        Ok(Event(event))
    }

    /// Records an event on a stream.
    pub(crate) fn record(&self, event: &Event, stream: &Stream) -> Result<(), Code> {
        // SAFETY: both are alive.
        check(unsafe { (self.event_record)(event.0, stream.0) })
    }

    /// Milliseconds between two recorded events whose stream was waited for.
    pub(crate) fn elapsed(&self, from: &Event, to: &Event) -> Result<f32, Code> {
        let mut milliseconds = 0.0;
        // SAFETY: both are alive; the pointer is valid.
        check(unsafe { (self.event_elapsed)(&raw mut milliseconds, from.0, to.0) })?;
        Ok(milliseconds)
    }

    /// Destroys an event.
    pub(crate) fn destroy_event(&self, event: Event) -> Result<(), Code> {
        // SAFETY: the event came from `event` and is used up here.
        check(unsafe { (self.event_destroy)(event.0) })
    }

    /// Fills device memory with a byte.
    pub(crate) fn memset(&self, span: Span, value: u8, stream: &Stream) -> Result<(), Code> {
        // SAFETY: the device writes inside its own memory; an address that is not mapped is an
        // error of the device, not of this process.
        check(unsafe { (self.memset)(span.address, value, span.size as usize, stream.0) })
    }

    /// Copies as much as fits both sides from pinned to device memory. The caller waits for the
    /// stream before it gives either away.
    pub(crate) fn copy_in(
        &self,
        span: Span,
        from: &PinnedMemory,
        stream: &Stream,
    ) -> Result<(), Code> {
        let size = span.size.min(from.size) as usize;
        // SAFETY: `size` lies inside both.
        check(unsafe { (self.copy_in)(span.address, from.address, size, stream.0) })
    }

    /// Copies as much as fits both sides from device to pinned memory; as [`Self::copy_in`].
    pub(crate) fn copy_out(
        &self,
        to: &PinnedMemory,
        span: Span,
        stream: &Stream,
    ) -> Result<(), Code> {
        let size = span.size.min(to.size) as usize;
        // SAFETY: `size` lies inside both.
        check(unsafe { (self.copy_out)(to.address, span.address, size, stream.0) })
    }
}
