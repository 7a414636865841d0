//! Graphs of a real device: captured in its stream, started as one, destroyed when no stream runs
//! them.
//!
//! A capture records the very calls that would have run the commands. It is relaxed: this thread
//! may meanwhile do what capturing threads may not (loading a function, reading an attribute),
//! because none of it is about the stream. What another thread would enqueue must wait; the caller
//! sees to that.

use std::collections::BTreeMap;
use std::ptr;

use cudarc::driver::sys;

use super::device::GraphId;
use super::devices::check;
use super::error::DeviceFault;

/// A graph as it was captured, destroyed with its owner.
struct CapturedGraph(sys::CUgraph);

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the driver made it, and it is destroyed once; what was instantiated stays.
            let _destroyed = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}

/// The graphs of one stream.
#[derive(Default)]
pub(super) struct StreamGraphs {
    made: BTreeMap<GraphId, sys::CUgraphExec>,
    next: u64,
}

impl StreamGraphs {
    /// Whether the stream has no graphs.
    pub(super) fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    /// Makes a graph of what `enqueue` enqueues in the stream. `None` if the driver or a library
    /// refuses; then nothing of it has run, and the stream is as before.
    ///
    /// # Errors
    /// If the device failed for good.
    pub(super) fn capture(
        &mut self,
        stream: sys::CUstream,
        enqueue: impl FnOnce() -> Result<(), DeviceFault>,
    ) -> Result<Option<GraphId>, DeviceFault> {
        match instantiate(stream, enqueue) {
            Ok(executable) => {
                let graph = GraphId(self.next);
                self.next += 1;
                self.made.insert(graph, executable);
                Ok(Some(graph))
            }
            Err(DeviceFault::Refused { .. } | DeviceFault::NoAlgorithm { .. }) => Ok(None),
            Err(
                fault @ (DeviceFault::Sticky { .. }
                | DeviceFault::Unready { .. }
                | DeviceFault::OutOfMemory { .. }
                | DeviceFault::OutOfHostMemory { .. }
                | DeviceFault::OtherLibrary { .. }),
            ) => Err(fault),
        }
    }

    pub(super) fn replay(&self, graph: GraphId, stream: sys::CUstream) -> Result<(), DeviceFault> {
        let executable = self.made[&graph];
        // SAFETY: it is destroyed by `destroy` alone, and the stream is the one it was captured in.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(executable, stream) })
    }

    /// Waits until the stream is idle, then destroys a graph.
    pub(super) fn destroy(&mut self, graph: GraphId, stream: sys::CUstream) {
        let executable = self.made.remove(&graph).expect("a graph is destroyed once");
        // Nothing can be done about a failure here, and a device that failed fails every call.
        // SAFETY: nothing can start it any more, and no stream runs it.
        unsafe {
            let _done = sys::cuStreamSynchronize(stream);
            let _destroyed = sys::cuGraphExecDestroy(executable);
        }
    }

    pub(super) fn clear(&mut self, stream: sys::CUstream) {
        while let Some(graph) = self.made.keys().next().copied() {
            self.destroy(graph, stream);
        }
    }
}

fn instantiate(
    stream: sys::CUstream,
    enqueue: impl FnOnce() -> Result<(), DeviceFault>,
) -> Result<sys::CUgraphExec, DeviceFault> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is the caller's, and captures nothing yet.
    let began = unsafe { sys::cuStreamBeginCapture_v2(stream, mode) };
    check("cuStreamBeginCapture", began)?;
    let enqueued = enqueue();
    let mut captured = CapturedGraph(ptr::null_mut());
    // SAFETY: the driver writes a handle, or null if the capture came to nothing. It is ended in
    // any case: a stream that goes on capturing would run nothing any more.
    let ended = unsafe { sys::cuStreamEndCapture(stream, &mut captured.0) };
    enqueued?;
    check("cuStreamEndCapture", ended)?;
    let mut executable = ptr::null_mut();
    // SAFETY: a captured graph; the driver writes a handle, which `destroy` releases.
    let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, captured.0, 0) };
    check("cuGraphInstantiate", result)?;
    Ok(executable)
}
