//! Streams, events and graphs.

use std::ffi::{c_uint, c_ulonglong};

use cudarc::driver::sys::CUevent_flags_enum as EventFlags;
use cudarc::driver::sys::CUstream_flags_enum as StreamFlags;
use cudarc::driver::sys::{
    self, CUevent, CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode,
};

use super::{in_context, own_stream, put};
use crate::machine::{DriverResult, EmulatedEvent, EmulatedMachine, EmulatedStream};

const EVENT_FLAGS: c_uint =
    EventFlags::CU_EVENT_BLOCKING_SYNC as c_uint | EventFlags::CU_EVENT_DISABLE_TIMING as c_uint;

/// An event of a context.
fn own_event(
    machine: &EmulatedMachine,
    device: usize,
    event: CUevent,
) -> DriverResult<&EmulatedEvent> {
    match machine.events.get(&(event as u64)) {
        Some(found) if found.device == device => Ok(found),
        Some(_) | None => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
    }
}

calls! {
    fn cuStreamCreate(to: *mut CUstream, flags: c_uint) -> CUresult {
        in_context(|machine, device| {
            if flags & !(StreamFlags::CU_STREAM_NON_BLOCKING as c_uint) != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            let stream = machine.fresh_handle();
            machine.streams.insert(stream, EmulatedStream::new(device));
            // SAFETY: the caller's pointer.
            unsafe { put(to, stream as CUstream) }
        })
    }

    fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            let end = machine.stream_end(stream as u64)?;
            machine.run_until(end);
            machine.streams.remove(&(stream as u64));
            Ok(())
        })
    }

    fn cuStreamSynchronize(stream: CUstream) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            machine.wait_for_stream(stream as u64)
        })
    }

    fn cuStreamQuery(stream: CUstream) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            match machine.query_stream(stream as u64)? {
                true => machine.check(device),
                false => Err(CUresult::CUDA_ERROR_NOT_READY),
            }
        })
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult {
        in_context(|machine, device| {
            if flags != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            own_stream(machine, device, stream as u64)?;
            machine.stream_wait_event(stream as u64, event as u64)
        })
    }

    fn cuEventCreate(to: *mut CUevent, flags: c_uint) -> CUresult {
        in_context(|machine, device| {
            if flags & !EVENT_FLAGS != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            let is_timed = flags & EventFlags::CU_EVENT_DISABLE_TIMING as c_uint == 0;
            let event = machine.fresh_handle();
            machine.events.insert(event, EmulatedEvent { device, is_timed, recorded: None, passed_ns: None });
            // SAFETY: the caller's pointer.
            unsafe { put(to, event as CUevent) }
        })
    }

    fn cuEventDestroy_v2(event: CUevent) -> CUresult {
        in_context(|machine, device| {
            own_event(machine, device, event)?;
            machine.events.remove(&(event as u64));
            Ok(())
        })
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
        in_context(|machine, device| {
            own_event(machine, device, event)?;
            own_stream(machine, device, stream as u64)?;
            machine.record(event as u64, stream as u64)
        })
    }

    fn cuEventSynchronize(event: CUevent) -> CUresult {
        in_context(|machine, device| {
            if let Some(position) = own_event(machine, device, event)?.recorded {
                machine.run_until(position);
            }
            machine.check(device)
        })
    }

    fn cuEventElapsedTime_v2(to: *mut f32, first: CUevent, later: CUevent) -> CUresult {
        in_context(|machine, device| {
            let [first, later] = [own_event(machine, device, first)?, own_event(machine, device, later)?];
            if ![first, later].iter().all(|event| event.is_timed && event.recorded.is_some()) {
                return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
            }
            let (Some(first), Some(later)) = (first.passed_ns, later.passed_ns) else {
                return Err(CUresult::CUDA_ERROR_NOT_READY);
            };
            // SAFETY: the caller's pointer.
            unsafe { put(to, (later as f32 - first as f32) / 1e6) }
        })
    }

    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult {
        in_context(|machine, device| {
            // In the other modes calls of the same thread are refused that are not refused here.
            if mode != CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            own_stream(machine, device, stream as u64)?;
            machine.begin_capture(stream as u64)
        })
    }

    fn cuStreamEndCapture(stream: CUstream, to: *mut CUgraph) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            let captured = machine.end_capture(stream as u64);
            let graph = captured.as_ref().map_or(0, |_| machine.fresh_handle());
            // SAFETY: the caller's pointer.
            unsafe { put(to, graph as CUgraph)? };
            machine.graphs.insert(graph, (device, captured?));
            Ok(())
        })
    }

    fn cuGraphDestroy(graph: CUgraph) -> CUresult {
        in_context(|machine, _| {
            let removed = machine.graphs.remove(&(graph as u64));
            removed.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
        })
    }

    fn cuGraphInstantiateWithFlags(to: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) -> CUresult {
        in_context(|machine, device| {
            let (_, work) =
                machine.graphs.get(&(graph as u64)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            if flags != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            let work = work.as_slice().into();
            let executable = machine.fresh_handle();
            machine.executables.insert(executable, (device, work));
            // SAFETY: the caller's pointer.
            unsafe { put(to, executable as CUgraphExec) }
        })
    }

    fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            let work = machine.executables.get(&(graph as u64));
            let (_, work) = work.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.clone();
            work.iter().try_for_each(|work| machine.enqueue(stream as u64, work.clone()))
        })
    }

    fn cuGraphExecDestroy(graph: CUgraphExec) -> CUresult {
        in_context(|machine, _| {
            let removed = machine.executables.remove(&(graph as u64));
            removed.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
        })
    }
}
