//! Streams, events, copies, and captured graphs of the driver API.

use super::memory::{DevicePointer, PinnedMemory};
use super::{Code, Driver, LoadError, check, symbol};
use std::ffi::{c_int, c_uchar, c_uint, c_void};

pub(super) type Raw = *mut c_void;

/// A stream; destroying it uses it up.
#[derive(Debug)]
pub(crate) struct RawStream(pub(super) Raw);

/// An event.
#[derive(Debug)]
pub(crate) struct RawEvent(Raw);

/// What a capture recorded.
#[derive(Debug)]
pub(crate) struct Template(Raw);

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Executable(Raw);

/// What a node of a graph does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Node {
    /// Launches a kernel.
    Kernel,
    /// Takes or gives back memory.
    Memory,
    /// Anything else: copies, fills, events.
    Other,
}

type CopyIn = unsafe extern "C" fn(u64, *const c_void, usize, Raw) -> c_int;

/// Functions of streams and graphs; all need a current context.
#[derive(Clone, Copy)]
pub(crate) struct StreamApi {
    create: unsafe extern "C" fn(*mut Raw, c_uint) -> c_int,
    destroy: unsafe extern "C" fn(Raw) -> c_int,
    synchronize: unsafe extern "C" fn(Raw) -> c_int,
    wait: unsafe extern "C" fn(Raw, Raw, c_uint) -> c_int,
    capturing: unsafe extern "C" fn(Raw, *mut c_int) -> c_int,
    begin_capture: unsafe extern "C" fn(Raw, c_int) -> c_int,
    end_capture: unsafe extern "C" fn(Raw, *mut Raw) -> c_int,
    nodes: unsafe extern "C" fn(Raw, *mut Raw, *mut usize) -> c_int,
    node_type: unsafe extern "C" fn(Raw, *mut c_int) -> c_int,
    instantiate: unsafe extern "C" fn(*mut Raw, Raw, u64) -> c_int,
    upload: unsafe extern "C" fn(Raw, Raw) -> c_int,
    launch: unsafe extern "C" fn(Raw, Raw) -> c_int,
    exec_destroy: unsafe extern "C" fn(Raw) -> c_int,
    graph_destroy: unsafe extern "C" fn(Raw) -> c_int,
    event_create: unsafe extern "C" fn(*mut Raw, c_uint) -> c_int,
    event_record: unsafe extern "C" fn(Raw, Raw) -> c_int,
    event_synchronize: unsafe extern "C" fn(Raw) -> c_int,
    event_query: unsafe extern "C" fn(Raw) -> c_int,
    event_elapsed: unsafe extern "C" fn(*mut f32, Raw, Raw) -> c_int,
    event_destroy: unsafe extern "C" fn(Raw) -> c_int,
    memset: unsafe extern "C" fn(u64, c_uchar, usize, Raw) -> c_int,
    memset_words: unsafe extern "C" fn(u64, c_uint, usize, Raw) -> c_int,
    copy_in: CopyIn,
    copy_out: unsafe extern "C" fn(*mut c_void, u64, usize, Raw) -> c_int,
    copy_within: unsafe extern "C" fn(u64, u64, usize, Raw) -> c_int,
}

/// `CU_STREAM_NON_BLOCKING`: no implicit order with the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: other threads may go on allocating.
const THREAD_LOCAL: c_int = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: c_uint = 2;
/// `CUDA_ERROR_NOT_READY`: an answer, not an error.
const NOT_READY: c_int = 600;

impl StreamApi {
    /// Finds the symbols; `_driver` says that the library is loaded.
    pub(crate) fn load(_driver: &Driver) -> Result<Self, LoadError> {
        Ok(Self {
            create: symbol("cuStreamCreate")?,
            destroy: symbol("cuStreamDestroy_v2")?,
            synchronize: symbol("cuStreamSynchronize")?,
            wait: symbol("cuStreamWaitEvent")?,
            capturing: symbol("cuStreamIsCapturing")?,
            begin_capture: symbol("cuStreamBeginCapture_v2")?,
            end_capture: symbol("cuStreamEndCapture")?,
            nodes: symbol("cuGraphGetNodes")?,
            node_type: symbol("cuGraphNodeGetType")?,
            instantiate: symbol("cuGraphInstantiateWithFlags")?,
            upload: symbol("cuGraphUpload")?,
            launch: symbol("cuGraphLaunch")?,
            exec_destroy: symbol("cuGraphExecDestroy")?,
            graph_destroy: symbol("cuGraphDestroy")?,
            event_create: symbol("cuEventCreate")?,
            event_record: symbol("cuEventRecord")?,
            event_synchronize: symbol("cuEventSynchronize")?,
            event_query: symbol("cuEventQuery")?,
            event_elapsed: symbol("cuEventElapsedTime")?,
            event_destroy: symbol("cuEventDestroy_v2")?,
            memset: symbol("cuMemsetD8Async")?,
            memset_words: symbol("cuMemsetD32Async")?,
            copy_in: symbol("cuMemcpyHtoDAsync_v2")?,
            copy_out: symbol("cuMemcpyDtoHAsync_v2")?,
            copy_within: symbol("cuMemcpyDtoDAsync_v2")?,
        })
    }

    /// A stream of its own.
    pub(crate) fn create(&self) -> Result<RawStream, Code> {
        let mut stream: Raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.create)(&raw mut stream, NON_BLOCKING) })?;
        Ok(RawStream(stream))
    }

    /// Destroys a stream.
    pub(crate) fn destroy(&self, stream: RawStream) -> Result<(), Code> {
        // SAFETY: the stream came from `create` and is used up here.
        check(unsafe { (self.destroy)(stream.0) })
    }

    /// Waits until all work of a stream is done; answers with its error, if it had one.
    pub(crate) fn synchronize(&self, stream: &RawStream) -> Result<(), Code> {
        // SAFETY: the stream is alive.
        check(unsafe { (self.synchronize)(stream.0) })
    }

    /// Lets later work of a stream wait for an event.
    pub(crate) fn wait(&self, stream: &RawStream, event: &RawEvent) -> Result<(), Code> {
        // SAFETY: both are alive; flags must be 0.
        check(unsafe { (self.wait)(stream.0, event.0, 0) })
    }

    /// Whether a stream records.
    pub(crate) fn capturing(&self, stream: &RawStream) -> Result<bool, Code> {
        let mut status = 0;
        // SAFETY: the stream is alive; the pointer is valid for the call.
        check(unsafe { (self.capturing)(stream.0, &raw mut status) })?;
        Ok(status != 0)
    }

    /// Begins to record the work of a stream.
    pub(crate) fn begin_capture(&self, stream: &RawStream) -> Result<(), Code> {
        // SAFETY: the stream is alive.
        check(unsafe { (self.begin_capture)(stream.0, THREAD_LOCAL) })
    }

    /// Ends what [`Self::begin_capture`] began; what was recorded.
    pub(crate) fn end_capture(&self, stream: &RawStream) -> Result<Template, Code> {
        let mut graph: Raw = std::ptr::null_mut();
        // SAFETY: the stream is alive; the pointer is valid for the call.
        check(unsafe { (self.end_capture)(stream.0, &raw mut graph) })?;
        Ok(Template(graph))
    }

    /// What the nodes of a graph do.
    pub(crate) fn nodes(&self, graph: &Template) -> Result<Vec<Node>, Code> {
        let mut count = 0_usize;
        // SAFETY: without room for nodes the driver answers with their number.
        check(unsafe { (self.nodes)(graph.0, std::ptr::null_mut(), &raw mut count) })?;
        let mut raw: Vec<Raw> = vec![std::ptr::null_mut(); count];
        // SAFETY: there is room for as many as are said.
        check(unsafe { (self.nodes)(graph.0, raw.as_mut_ptr(), &raw mut count) })?;
        let kind = |node: &Raw| {
            let mut kind = 0;
            // SAFETY: the node is one of a graph that is alive; the pointer is valid.
            check(unsafe { (self.node_type)(*node, &raw mut kind) })?;
            Ok(match kind {
                0 => Node::Kernel,
                10 | 11 => Node::Memory,
                _ => Node::Other,
            })
        };
        raw.iter().take(count).map(kind).collect()
    }

    /// Makes what was recorded executable.
    pub(crate) fn instantiate(&self, graph: &Template) -> Result<Executable, Code> {
        let mut executable: Raw = std::ptr::null_mut();
        // SAFETY: the graph is alive; the pointer is valid; no flags.
        check(unsafe { (self.instantiate)(&raw mut executable, graph.0, 0) })?;
        Ok(Executable(executable))
    }

    /// Destroys what was recorded; what was made from it stays.
    pub(crate) fn destroy_template(&self, graph: Template) -> Result<(), Code> {
        // SAFETY: the graph came from `end_capture` and is used up here.
        check(unsafe { (self.graph_destroy)(graph.0) })
    }

    /// Puts a graph's device side in place, so that its cost shows before the first launch.
    pub(crate) fn upload(&self, graph: &Executable, stream: &RawStream) -> Result<(), Code> {
        // SAFETY: both are alive.
        check(unsafe { (self.upload)(graph.0, stream.0) })
    }

    /// Launches a graph. Pinned memory that it copies must still be held.
    pub(crate) fn launch(&self, graph: &Executable, stream: &RawStream) -> Result<(), Code> {
        // SAFETY: both are alive; the owner of the graph holds the pinned memory that it copies.
        check(unsafe { (self.launch)(graph.0, stream.0) })
    }

    /// Destroys a graph.
    pub(crate) fn destroy_executable(&self, graph: Executable) -> Result<(), Code> {
        // SAFETY: it came from `instantiate` and is used up here.
        check(unsafe { (self.exec_destroy)(graph.0) })
    }

    /// An event, one that measures time or not.
    pub(crate) fn event(&self, timed: bool) -> Result<RawEvent, Code> {
        let mut event: Raw = std::ptr::null_mut();
        let flags = if timed { 0 } else { NO_TIMING };
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.event_create)(&raw mut event, flags) })?;
        Ok(RawEvent(event))
    }

    /// Records an event on a stream.
    pub(crate) fn record(&self, event: &RawEvent, stream: &RawStream) -> Result<(), Code> {
        // SAFETY: both are alive.
        check(unsafe { (self.event_record)(event.0, stream.0) })
    }

    /// Waits until the work before a recorded event is done.
    pub(crate) fn event_wait(&self, event: &RawEvent) -> Result<(), Code> {
        // SAFETY: the event is alive.
        check(unsafe { (self.event_synchronize)(event.0) })
    }

    /// Whether the work before a recorded event is done.
    pub(crate) fn event_done(&self, event: &RawEvent) -> Result<bool, Code> {
        // SAFETY: the event is alive.
        match unsafe { (self.event_query)(event.0) } {
            NOT_READY => Ok(false),
            code => check(code).map(|()| true),
        }
    }

    /// Milliseconds between two recorded events whose stream was waited for.
    pub(crate) fn elapsed(&self, from: &RawEvent, to: &RawEvent) -> Result<f32, Code> {
        let mut milliseconds = 0.0;
        // SAFETY: both are alive; the pointer is valid.
        check(unsafe { (self.event_elapsed)(&raw mut milliseconds, from.0, to.0) })?;
        Ok(milliseconds)
    }

    /// Destroys an event.
    pub(crate) fn destroy_event(&self, event: RawEvent) -> Result<(), Code> {
        // SAFETY: the event came from `event` and is used up here.
        check(unsafe { (self.event_destroy)(event.0) })
    }

    /// Fills device memory with a byte.
    pub(crate) fn memset(
        &self,
        to: DevicePointer,
        value: u8,
        stream: &RawStream,
    ) -> Result<(), Code> {
        // SAFETY: the device writes inside its own memory; an address that is not mapped is an
        // error of the device, not of this process.
        check(unsafe { (self.memset)(to.address, value, to.size as usize, stream.0) })
    }

    /// Fills device memory with a word of 32 bits; a rest below four bytes stays.
    pub(crate) fn memset_words(
        &self,
        to: DevicePointer,
        value: u32,
        stream: &RawStream,
    ) -> Result<(), Code> {
        // SAFETY: as in `memset`.
        check(unsafe { (self.memset_words)(to.address, value, (to.size / 4) as usize, stream.0) })
    }

    /// Copies from pinned memory, from `offset` on, as much as fits both sides. The caller keeps
    /// `from` and does not write to it until the stream is waited for.
    pub(crate) fn copy_in(
        &self,
        to: DevicePointer,
        from: &PinnedMemory,
        offset: u64,
        stream: &RawStream,
    ) -> Result<(), Code> {
        let offset = offset.min(from.size);
        let size = to.size.min(from.size - offset) as usize;
        let from = from.address.cast::<u8>().wrapping_add(offset as usize);
        // SAFETY: `size` lies inside both.
        check(unsafe { (self.copy_in)(to.address, from.cast(), size, stream.0) })
    }

    /// Copies to pinned memory, from `offset` on, as much as fits both sides. The caller keeps
    /// `to` and does not look at it until the stream is waited for.
    pub(crate) fn copy_out(
        &self,
        to: &PinnedMemory,
        offset: u64,
        from: DevicePointer,
        stream: &RawStream,
    ) -> Result<(), Code> {
        let offset = offset.min(to.size);
        let size = from.size.min(to.size - offset) as usize;
        let to = to.address.cast::<u8>().wrapping_add(offset as usize);
        // SAFETY: `size` lies inside both.
        check(unsafe { (self.copy_out)(to.cast(), from.address, size, stream.0) })
    }

    /// Copies as much as fits both sides within the device.
    pub(crate) fn copy_within(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        stream: &RawStream,
    ) -> Result<(), Code> {
        let size = to.size.min(from.size) as usize;
        // SAFETY: as in `memset`.
        check(unsafe { (self.copy_within)(to.address, from.address, size, stream.0) })
    }
}
