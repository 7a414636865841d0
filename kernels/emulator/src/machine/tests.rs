//! What streams do and refuse, on machines without a driver around them.

use std::thread;

use cudarc::driver::sys::CUresult;

use super::memory::{BlockOwner, MemoryBlocks};
use super::product::{EmulatedProduct, MatrixElement, MatrixLayout, MatrixOperand};
use super::work::StreamWork;
use super::{EmulatedEvent, EmulatedMachine, EmulatedStream};
use crate::settings::{EmulatorSettings, ExecutionOrder};

/// A machine with two streams, and a block of eight bytes.
struct MachineFixture {
    machine: EmulatedMachine,
    streams: [u64; 2],
    block: u64,
}

fn fixture(order: ExecutionOrder) -> MachineFixture {
    let mut machine = EmulatedMachine::new(EmulatorSettings { order, ..EmulatorSettings::DEFAULT });
    let streams = [machine.fresh_handle(), machine.fresh_handle()];
    streams.iter().for_each(|stream| {
        machine.streams.insert(*stream, EmulatedStream::new(0));
    });
    let block = machine.blocks.take(8, BlockOwner::Device(0));
    MachineFixture { machine, streams, block }
}

impl MachineFixture {
    fn fill(&mut self, stream: usize, byte: u8) {
        let work = StreamWork::Fill { to: self.block, byte, bytes: 8 };
        self.machine.enqueue(self.streams[stream], work).expect("a stream that takes work");
    }

    fn event(&mut self) -> u64 {
        let event = self.machine.fresh_handle();
        let new = EmulatedEvent { device: 0, is_timed: false, recorded: None, passed_ns: None };
        self.machine.events.insert(event, new);
        event
    }

    fn byte(&self) -> u8 {
        // SAFETY: the block lives as long as the machine.
        unsafe { *(self.block as *const u8) }
    }
}

#[test]
fn lazy_streams_do_what_a_caller_waits_for_and_no_more() {
    let mut fixture = fixture(ExecutionOrder::Lazy);
    fixture.fill(0, 1);
    fixture.fill(1, 2);
    assert_eq!(fixture.byte(), 0xff, "no caller waited");
    fixture.machine.wait_for_stream(fixture.streams[0]).expect("it is done");
    assert_eq!(fixture.byte(), 1, "no caller waited for the other stream");
    fixture.machine.wait_for_stream(fixture.streams[1]).expect("it is done");
    assert_eq!(fixture.byte(), 2);
}

#[test]
fn a_stream_that_waits_for_another_is_done_after_it() {
    let mut fixture = fixture(ExecutionOrder::Lazy);
    let event = fixture.event();
    fixture.fill(0, 1);
    fixture.machine.record(event, fixture.streams[0]).expect("an event");
    // What is enqueued behind the event is not waited for.
    fixture.fill(0, 9);
    fixture.machine.stream_wait_event(fixture.streams[1], event).expect("a recorded event");
    let copy = fixture.machine.blocks.take(8, BlockOwner::Device(0));
    let work = StreamWork::Copy { from: fixture.block, to: copy, bytes: 8 };
    fixture.machine.enqueue(fixture.streams[1], work).expect("a stream");
    fixture.machine.wait_for_stream(fixture.streams[1]).expect("it is done");
    // SAFETY: the block lives as long as the machine.
    assert_eq!((unsafe { *(copy as *const u8) }, fixture.byte()), (1, 1));
}

#[test]
fn drawn_streams_have_one_course_a_seed_and_seeds_have_several() {
    let course = |seed| {
        let mut fixture = fixture(ExecutionOrder::Random { seed });
        (0..40).map(|i| (fixture.fill(i % 2, i as u8), fixture.byte()).1).collect::<Vec<u8>>()
    };
    assert_eq!(course(3), course(3));
    assert!((4..8).any(|seed| course(seed) != course(3)));
}

#[test]
fn captures_refuse_what_no_graph_can_have() {
    let mut fixture = fixture(ExecutionOrder::Eager);
    let stream = fixture.streams[0];
    fixture.machine.begin_capture(stream).expect("nothing is captured yet");
    fixture.fill(0, 1);
    assert_eq!(fixture.byte(), 0xff, "it was captured, not done");
    assert_eq!(fixture.machine.end_capture(stream).map(|work| work.len()), Ok(1));
    fixture.machine.begin_capture(stream).expect("the first is over");
    let waited = fixture.machine.wait_for_stream(stream);
    assert_eq!(waited, Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    let ended = fixture.machine.end_capture(stream).map(|work| work.len());
    assert_eq!(ended, Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    fixture.machine.begin_capture(stream).expect("the second is over");
    let block = fixture.block;
    let machine = &mut fixture.machine;
    let enqueued = thread::scope(|scope| {
        let work = StreamWork::Fill { to: block, byte: 1, bytes: 8 };
        scope.spawn(move || machine.enqueue(stream, work)).join().expect("no panic")
    });
    assert_eq!(enqueued, Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
}

#[test]
fn work_on_freed_memory_makes_the_device_fail() {
    let mut fixture = fixture(ExecutionOrder::Lazy);
    fixture.fill(0, 1);
    fixture.machine.blocks.free(fixture.block);
    let waited = fixture.machine.wait_for_stream(fixture.streams[0]);
    assert_eq!(waited, Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(fixture.machine.check(0), waited);
}

/// `[1 2; 3 4]` by `[5 6; 7 8]`, column by column, the first transposed or not, on top of ones.
#[test]
fn products_are_of_columns() {
    let mut blocks = MemoryBlocks::default();
    let mut matrix = |floats: [f32; 4], is_transposed| {
        let start = blocks.take(16, BlockOwner::Device(0));
        // SAFETY: just taken.
        unsafe { (start as *mut [f32; 4]).write(floats) };
        let matrix = MatrixLayout { element: MatrixElement::F32, rows: 2, columns: 2, stride: 2 };
        MatrixOperand { matrix, start, is_transposed }
    };
    let b = matrix([5.0, 7.0, 6.0, 8.0], false);
    let c = matrix([1.0; 4], false);
    let factors = [matrix([1.0, 3.0, 2.0, 4.0], false), matrix([1.0, 2.0, 3.0, 4.0], true)];
    let results = [matrix([f32::NAN; 4], false), matrix([f32::NAN; 4], false)];
    for (a, d) in factors.into_iter().zip(results) {
        let workspace = (b.start, 0);
        let product = EmulatedProduct { a, b, c, d, alpha: 1.0, beta: 1.0, parts: 1, workspace };
        product.form(&blocks).expect("all of it is there");
        // SAFETY: written by the product.
        assert_eq!(unsafe { *(d.start as *const [f32; 4]) }, [20.0, 44.0, 23.0, 51.0]);
    }
}
