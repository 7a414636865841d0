//! Frames go out in the order they were handed over, whichever tensors have to be waited for; and of a device
//! that gave up, none.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use zbelastic_consensus::member::Holder;
use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::{DeviceFault, HostTensor, PendingTensor, TensorHandle};
use zbelastic_schedule::{Flow, Pass};
use zbelastic_trainer::stage::{Frame, PassMode};
use zbelastic_types::{Attempt, Generation, Incarnation, Step};

use super::*;

/// Longer than a thread needs to go on that may.
const SHORT_WAIT: Duration = Duration::from_millis(100);

/// Where frames arrive: the first number of each.
#[derive(Clone)]
struct RecordingCarrier(Sender<f32>);

impl FrameCarrier for RecordingCarrier {
    fn submit(&self, to: NodeId, frame: OutgoingFrame) {
        assert_eq!(to, NodeId(2));
        // A test that dropped the receiver has seen enough.
        let _gone = self.0.send(frame.parts().first().map_or(f32::NAN, |part| part[0]));
    }

    fn submit_blocking(&self, to: NodeId, frame: OutgoingFrame) {
        self.submit(to, frame);
    }
}

/// A tensor that a device is still at work on.
struct SlowTensor {
    number: f32,
    /// Gets a message when the courier begins to wait.
    begun: Sender<()>,
    ready: Mutex<Receiver<()>>,
    fault: Option<DeviceFault>,
}

impl PendingTensor for SlowTensor {
    fn count(&self) -> usize {
        1
    }

    fn wait(&self) -> HostTensor {
        let _nobody_asks = self.begun.send(());
        // A test that dropped its end has let it go on.
        let _ready = self.ready.lock().expect("one asks").recv();
        HostTensor::Floats(vec![self.number])
    }

    fn fault(&self) -> Option<DeviceFault> {
        self.fault.clone()
    }
}

/// The device's end of a tensor: learns that the courier waits, and lets the tensor be ready.
struct SlowTensorControl {
    begun: Receiver<()>,
    ready: Sender<()>,
}

fn slow(number: f32, fault: Option<DeviceFault>) -> (TensorHandle, SlowTensorControl) {
    let ((begun, told), (ready, waits)) = (channel(), channel());
    let held = SlowTensor { number, begun, ready: Mutex::new(waits), fault };
    (TensorHandle::OnDevice(Arc::new(held)), SlowTensorControl { begun: told, ready })
}

fn plain(number: f32) -> TensorHandle {
    TensorHandle::from(vec![number])
}

fn frame(tensor: TensorHandle) -> PeerFrame {
    let generation = Generation(1);
    let turn = Turn { generation, step: Step(0), attempt: Attempt(0) };
    let (lap, flow, pass) = (PassMode::Training, Flow::Forward, Pass::new(0, 0));
    let body = PeerBody::Frame(Frame { turn, mode: lap, flow, pass, tensor });
    let sender = Holder { node: NodeId(1), incarnation: Incarnation(0) };
    PeerFrame { generation, sender, body }
}

/// A courier, where its frames arrive, and the outputs that the worker receives.
fn dispatcher() -> (FrameDispatcher<RecordingCarrier>, Receiver<f32>, mpsc::Receiver<DeviceOutput>)
{
    let (arrivals, road) = channel();
    let (outbox, outputs) = mpsc::channel(1);
    (FrameDispatcher::new(RecordingCarrier(arrivals), outbox, "cuda:7".to_owned()), road, outputs)
}

fn send(courier: &mut FrameDispatcher<RecordingCarrier>, tensor: TensorHandle) -> bool {
    courier.send(NodeId(2), frame(tensor)).is_ok()
}

fn sticky() -> DeviceFault {
    DeviceFault::of_code("cuEventSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned())
}

#[test]
fn frames_that_can_be_had_wait_behind_one_that_cannot_yet() {
    let (mut courier, road, _outputs) = dispatcher();
    assert!(send(&mut courier, plain(0.0)));
    assert_eq!(road.try_recv(), Ok(0.0), "nobody is waited for yet");
    let (first, first_work) = slow(1.0, None);
    let (third, third_work) = slow(3.0, None);
    for tensor in [first, plain(2.0), third, plain(4.0)] {
        assert!(send(&mut courier, tensor), "the device thread goes on");
    }
    first_work.begun.recv().expect("it is waited for");
    assert!(road.try_recv().is_err(), "nothing overtakes it");
    // The later one is ready first.
    third_work.ready.send(()).expect("it will be asked");
    first_work.ready.send(()).expect("it is asked");
    let arrived: Vec<f32> = (0..4).map(|_| road.recv().expect("it comes")).collect();
    assert_eq!(arrived, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn whoever_is_a_full_queue_ahead_waits_for_the_dispatcher() {
    let (mut courier, road, _outputs) = dispatcher();
    let (first, work) = slow(0.0, None);
    assert!(send(&mut courier, first));
    work.begun.recv().expect("it is out of the bag, and waited for");
    for number in 1..=FRAMES_QUEUED_MAX {
        assert!(send(&mut courier, plain(number as f32)), "there is room for {number}");
    }
    let (told, done) = channel();
    let ahead = thread::spawn(move || {
        let was_sent = send(&mut courier, plain(1.0 + FRAMES_QUEUED_MAX as f32));
        told.send(was_sent).expect("the test waits");
    });
    assert_eq!(done.recv_timeout(SHORT_WAIT), Err(RecvTimeoutError::Timeout), "the bag is full");
    work.ready.send(()).expect("it is asked");
    assert_eq!(done.recv(), Ok(true), "there is room again");
    ahead.join().expect("no panic");
    let arrived: Vec<f32> = road.iter().collect();
    let expected: Vec<f32> = (0..=FRAMES_QUEUED_MAX + 1).map(|number| number as f32).collect();
    assert_eq!(arrived, expected);
}

#[test]
fn nothing_leaves_behind_a_frame_that_the_device_did_not_give() {
    let (mut courier, road, mut outputs) = dispatcher();
    let (good, good_work) = slow(1.0, None);
    let (bad, bad_work) = slow(2.0, Some(sticky()));
    for tensor in [good, bad, plain(3.0)] {
        assert!(send(&mut courier, tensor));
    }
    good_work.ready.send(()).expect("it will be asked");
    bad_work.ready.send(()).expect("it will be asked");
    let Some(DeviceOutput::Failed(trouble)) = outputs.blocking_recv() else {
        panic!("the worker is told");
    };
    let text = trouble.to_string();
    assert!(text.starts_with("cuda:7: ") && text.contains("ILLEGAL_ADDRESS"), "{text}");
    // The thread ends, and with it the road.
    let tries = (0..=FRAMES_QUEUED_MAX).take_while(|_| send(&mut courier, plain(4.0))).count();
    assert!(tries <= FRAMES_QUEUED_MAX, "the device thread hears that it is over");
    drop(courier);
    assert_eq!(road.iter().collect::<Vec<_>>(), [1.0]);
}

/// Without a thread the device thread finds it itself.
#[test]
fn a_fault_is_reported_by_whoever_reads_the_numbers() {
    let (courier, road, mut outputs) = dispatcher();
    let (bad, work) = slow(1.0, Some(sticky()));
    work.ready.send(()).expect("it will be asked");
    assert!(courier.forwarder.send(NodeId(2), frame(bad)).is_err());
    assert!(matches!(
        outputs.try_recv(),
        Ok(DeviceOutput::Failed(WorkerDeviceError::Fault { .. }))
    ));
    assert!(road.try_recv().is_err());
}

#[test]
fn frames_under_way_arrive_when_the_worker_lets_go_and_the_thread_ends_behind_them() {
    let (mut courier, road, _outputs) = dispatcher();
    let (first, work) = slow(1.0, None);
    assert!(send(&mut courier, first) && send(&mut courier, plain(2.0)));
    work.begun.recv().expect("it is waited for");
    drop(courier);
    work.ready.send(()).expect("it is asked");
    // The road ends with the thread: else this would wait for ever.
    assert_eq!(road.iter().collect::<Vec<_>>(), [1.0, 2.0]);
}

#[test]
fn a_worker_that_hears_nothing_any_more_ends_the_thread() {
    let (mut courier, road, outputs) = dispatcher();
    let (bad, work) = slow(1.0, Some(sticky()));
    assert!(send(&mut courier, bad) && send(&mut courier, plain(2.0)));
    drop(outputs);
    work.ready.send(()).expect("it is asked");
    let tries = (0..=FRAMES_QUEUED_MAX + 1).take_while(|_| send(&mut courier, plain(3.0))).count();
    assert!(tries <= FRAMES_QUEUED_MAX + 1, "it does not take frames for ever");
    drop(courier);
    assert_eq!(road.iter().count(), 0);
}
