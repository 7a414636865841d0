//! Frames are sent in the order they were submitted, whichever tensors have to be waited for; and
//! of a device that gave up, none.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Builder;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::{DeviceFault, DeviceValue, HostFloats, HostTensor, Pending, TensorHandle};
use zbelastic_policy::WorkCounter;
use zbelastic_schedule::{Flow, Pass};
use zbelastic_trainer::elastic::{LayerGradient, LayerImage};
use zbelastic_trainer::runtime::PeerBody;
use zbelastic_trainer::stage::{Frame, PartialExchange, PartialGradient, PassMode};
use zbelastic_types::{Attempt, Bytes, ChunkIndex, Generation, Incarnation, LayerId, Step};

use super::*;

/// Longer than a thread that may continue needs to do so.
const SHORT_WAIT: Duration = Duration::from_millis(100);

/// Where frames arrive: the first number of each.
#[derive(Clone)]
struct RecordingCarrier(Sender<f32>);

impl FrameCarrier for RecordingCarrier {
    fn submit(&self, to: NodeId, frame: OutgoingFrame) -> Option<OutgoingFrame> {
        assert_eq!(to, NodeId(2));
        // A test that dropped the receiver has seen enough.
        let _gone = self.0.send(number_of(&frame));
        None
    }

    fn submit_blocking(
        &self,
        to: NodeId,
        frame: OutgoingFrame,
        _superseded: impl Future<Output = ()>,
    ) {
        assert!(self.submit(to, frame).is_none());
    }
}

/// The first number of a frame.
fn number_of(frame: &OutgoingFrame) -> f32 {
    frame.parts().first().map_or(f32::NAN, |part| part[0])
}

/// A tensor that a device is still at work on.
struct SlowTensor {
    number: f32,
    /// Receives a message when the dispatcher begins to wait.
    begun: Sender<()>,
    ready: Mutex<Receiver<()>>,
    fault: Option<DeviceFault>,
}

impl DeviceValue<HostTensor> for SlowTensor {
    fn read(&self) -> Result<HostTensor, DeviceFault> {
        let _nobody_asks = self.begun.send(());
        // A test that dropped its end has let it continue.
        let _ready = self.ready.lock().expect("one asks").recv();
        self.fault.clone().map_or_else(|| Ok(HostTensor::Floats(vec![self.number])), Err)
    }
}

/// The device's end of a tensor: learns that the dispatcher waits, and makes the tensor ready.
struct SlowTensorControl {
    begun: Receiver<()>,
    ready: Sender<()>,
}

fn slow(number: f32, fault: Option<DeviceFault>) -> (TensorHandle, SlowTensorControl) {
    let ((begun, begins), (ready, waits)) = (channel(), channel());
    let held = SlowTensor { number, begun, ready: Mutex::new(waits), fault };
    let tensor = TensorHandle::pending(1, Pending::OnDevice(Arc::new(held)));
    (tensor, SlowTensorControl { begun: begins, ready })
}

fn plain(number: f32) -> TensorHandle {
    TensorHandle::from(vec![number])
}

fn turn() -> Turn {
    Turn { generation: Generation(1), step: Step(0), attempt: Attempt(0) }
}

fn peer_frame(body: PeerBody) -> PeerFrame {
    let sender = Holder { node: NodeId(1), incarnation: Incarnation(0) };
    PeerFrame { generation: Generation(1), sender, body }
}

fn frame(tensor: TensorHandle) -> PeerFrame {
    let mode = PassMode::Training;
    let flow = Flow::Forward;
    let pass = Pass::new(0, 0);
    peer_frame(PeerBody::Frame(Frame { turn: turn(), mode, flow, pass, tensor }))
}

/// A dispatcher, where its frames arrive, and the outputs that the worker receives.
fn dispatcher() -> (FrameDispatcher<RecordingCarrier>, Receiver<f32>, mpsc::Receiver<DeviceOutput>)
{
    let (sender, carried) = channel();
    let (dispatcher, outputs, _in_force) = dispatcher_with(RecordingCarrier(sender));
    (dispatcher, carried, outputs)
}

/// A dispatcher, the outputs that the worker receives, and the plan in force, which is the first one.
fn dispatcher_with<R: FrameCarrier>(
    carrier: R,
) -> (FrameDispatcher<R>, mpsc::Receiver<DeviceOutput>, watch::Sender<Generation>) {
    let (outbox, outputs) = mpsc::channel(1);
    let (in_force, of_dispatcher) = watch::channel(Generation(1));
    let device = ("cuda:7".to_owned(), LayerSnapshots::new("unused".into(), Bytes(0)));
    let dispatcher = FrameDispatcher::new(carrier, outbox, device, of_dispatcher, None);
    (dispatcher, outputs, in_force)
}

fn send(dispatcher: &mut FrameDispatcher<RecordingCarrier>, tensor: TensorHandle) -> bool {
    dispatcher.send(NodeId(2), frame(tensor)).is_ok()
}

fn sticky() -> DeviceFault {
    DeviceFault::of_code("cuEventSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned())
}

#[test]
fn frames_that_can_be_had_wait_behind_one_that_cannot_yet() {
    let (mut dispatcher, carried, _outputs) = dispatcher();
    assert!(send(&mut dispatcher, plain(0.0)));
    assert_eq!(carried.try_recv(), Ok(0.0), "nobody is waited for yet");
    let (first, first_work) = slow(1.0, None);
    let (third, third_work) = slow(3.0, None);
    for tensor in [first, plain(2.0), third, plain(4.0)] {
        assert!(send(&mut dispatcher, tensor), "the device thread goes on");
    }
    first_work.begun.recv().expect("it is waited for");
    assert!(carried.try_recv().is_err(), "nothing overtakes it");
    // The later one is ready first.
    third_work.ready.send(()).expect("the dispatcher will wait");
    first_work.ready.send(()).expect("the dispatcher waits");
    let received: Vec<f32> = (0..4).map(|_| carried.recv().expect("it comes")).collect();
    assert_eq!(received, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn whoever_is_a_full_queue_ahead_waits_for_the_dispatcher() {
    let (mut dispatcher, carried, _outputs) = dispatcher();
    let (first, control) = slow(0.0, None);
    assert!(send(&mut dispatcher, first));
    control.begun.recv().expect("it is out of the queue, and waited for");
    for number in 1..=MESSAGES_QUEUED_MAX {
        assert!(send(&mut dispatcher, plain(number as f32)), "there is room for {number}");
    }
    let (sent, done) = channel();
    let ahead = thread::spawn(move || {
        let was_sent = send(&mut dispatcher, plain(1.0 + MESSAGES_QUEUED_MAX as f32));
        sent.send(was_sent).expect("the test waits");
    });
    assert_eq!(done.recv_timeout(SHORT_WAIT), Err(RecvTimeoutError::Timeout), "the bag is full");
    control.ready.send(()).expect("the dispatcher waits");
    assert_eq!(done.recv(), Ok(true), "there is room again");
    ahead.join().expect("no panic");
    let received: Vec<f32> = carried.iter().collect();
    let expected: Vec<f32> = (0..=MESSAGES_QUEUED_MAX + 1).map(|number| number as f32).collect();
    assert_eq!(received, expected);
}

#[test]
fn nothing_leaves_behind_a_frame_that_the_device_did_not_give() {
    let (mut dispatcher, carried, mut outputs) = dispatcher();
    let (good, good_work) = slow(1.0, None);
    let (bad, bad_work) = slow(2.0, Some(sticky()));
    for tensor in [good, bad, plain(3.0)] {
        assert!(send(&mut dispatcher, tensor));
    }
    good_work.ready.send(()).expect("the dispatcher will wait");
    bad_work.ready.send(()).expect("the dispatcher will wait");
    let Some(DeviceOutput::Failed(error)) = outputs.blocking_recv() else {
        panic!("the worker receives it");
    };
    let text = error.to_string();
    assert!(text.starts_with("cuda:7: ") && text.contains("ILLEGAL_ADDRESS"), "{text}");
    // The thread ends, and with it the carrier.
    let tries = (0..=MESSAGES_QUEUED_MAX).take_while(|_| send(&mut dispatcher, plain(4.0))).count();
    assert!(tries <= MESSAGES_QUEUED_MAX, "the device thread hears that it is over");
    drop(dispatcher);
    assert_eq!(carried.iter().collect::<Vec<_>>(), [1.0]);
}

/// Without a thread the device thread finds it itself.
#[test]
fn a_fault_is_reported_by_whoever_reads_the_numbers() {
    let (dispatcher, carried, mut outputs) = dispatcher();
    let (bad, control) = slow(1.0, Some(sticky()));
    control.ready.send(()).expect("the dispatcher will wait");
    assert!(dispatcher.forwarder.try_send(NodeId(2), frame(bad)).is_err());
    assert!(matches!(
        outputs.try_recv(),
        Ok(DeviceOutput::Failed(WorkerDeviceError::Fault { .. }))
    ));
    assert!(carried.try_recv().is_err());
}

#[test]
fn frames_under_way_arrive_when_the_worker_lets_go_and_the_thread_ends_behind_them() {
    let (mut dispatcher, carried, _outputs) = dispatcher();
    let (first, control) = slow(1.0, None);
    assert!(send(&mut dispatcher, first) && send(&mut dispatcher, plain(2.0)));
    control.begun.recv().expect("it is waited for");
    drop(dispatcher);
    control.ready.send(()).expect("the dispatcher waits");
    // The carrier ends with the thread: else this would wait for ever.
    assert_eq!(carried.iter().collect::<Vec<_>>(), [1.0, 2.0]);
}

#[test]
fn a_worker_that_hears_nothing_any_more_ends_the_thread() {
    let (mut dispatcher, carried, outputs) = dispatcher();
    let (bad, control) = slow(1.0, Some(sticky()));
    assert!(send(&mut dispatcher, bad) && send(&mut dispatcher, plain(2.0)));
    drop(outputs);
    control.ready.send(()).expect("the dispatcher waits");
    let tries =
        (0..=MESSAGES_QUEUED_MAX + 1).take_while(|_| send(&mut dispatcher, plain(3.0))).count();
    assert!(tries <= MESSAGES_QUEUED_MAX + 1, "it does not take frames for ever");
    drop(dispatcher);
    assert_eq!(carried.iter().count(), 0);
}

/// Peers, by number, each of which has a queue with space for one frame.
#[derive(Clone)]
struct BoundedCarrier(Vec<(NodeId, mpsc::Sender<f32>)>);

impl BoundedCarrier {
    /// It, and where the frames of each of so many peers come out, the first of which is the second node.
    fn of_peers(count: u64) -> (Self, Vec<mpsc::Receiver<f32>>) {
        let peers = (2..2 + count).map(|peer| (NodeId(peer), mpsc::channel(1)));
        let (queues, carried) = peers.map(|(peer, (queue, out))| ((peer, queue), out)).unzip();
        (Self(queues), carried)
    }

    fn queue(&self, to: NodeId) -> &mpsc::Sender<f32> {
        &self.0.iter().find(|(peer, _)| *peer == to).expect("a peer").1
    }
}

impl FrameCarrier for BoundedCarrier {
    fn submit(&self, to: NodeId, frame: OutgoingFrame) -> Option<OutgoingFrame> {
        self.queue(to).try_send(number_of(&frame)).is_err().then_some(frame)
    }

    fn submit_blocking(
        &self,
        to: NodeId,
        frame: OutgoingFrame,
        superseded: impl Future<Output = ()>,
    ) {
        let runtime = Builder::new_current_thread().build().expect("a runtime without timers");
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = superseded => {}
                // A test that dropped the receiver has seen enough.
                _gone = self.queue(to).send(number_of(&frame)) => {}
            }
        });
    }
}

/// All frames that come out until the dispatcher and its threads are gone.
fn rest(mut carried: mpsc::Receiver<f32>) -> Vec<f32> {
    std::iter::from_fn(|| carried.blocking_recv()).collect()
}

/// A step may have more boundary tensors than the queue to a peer holds: all of them arrive, in order, and the
/// device goes on.
#[test]
fn frames_of_passes_wait_for_space() {
    let (carrier, mut carried) = BoundedCarrier::of_peers(1);
    let (mut dispatcher, _outputs, _in_force) = dispatcher_with(carrier);
    let numbers: Vec<f32> = (0..200_u8).map(f32::from).collect();
    for number in &numbers {
        assert!(dispatcher.send(NodeId(2), frame(plain(*number))).is_ok(), "the device goes on");
    }
    drop(dispatcher);
    assert_eq!(rest(carried.remove(0)), numbers);
}

/// The queue to a lost peer empties no more. Frames to others wait behind its own until the next plan is in force, and
/// not beyond: those of that plan are sent, and it was in no order that the device and the worker learned of it.
#[test]
fn frames_of_a_plan_before_are_not_waited_with() {
    let of_plan = |generation, frame| PeerFrame { generation: Generation(generation), ..frame };
    for make in [|number| frame(plain(number)), exchange] {
        let (carrier, mut carried) = BoundedCarrier::of_peers(2);
        let first_queue = carrier.queue(NodeId(2)).clone();
        let (mut dispatcher, _outputs, in_force) = dispatcher_with(carrier);
        let mut send = |to, generation, number| {
            let sent = dispatcher.send(NodeId(to), of_plan(generation, make(number)));
            assert!(sent.is_ok(), "the device goes on");
        };
        // The first is sent, and the second waits for space.
        send(2, 1, 1.0);
        while first_queue.capacity() > 0 {
            thread::yield_now();
        }
        send(2, 1, 2.0);
        send(3, 2, 3.0);
        assert!(carried[1].try_recv().is_err(), "the frame before it waits");
        in_force.send_replace(Generation(2));
        assert_eq!(carried[1].blocking_recv(), Some(3.0));
        send(2, 2, 4.0);
        send(3, 2, 5.0);
        assert_eq!(carried[0].blocking_recv(), Some(1.0));
        assert_eq!(
            carried[0].blocking_recv(),
            Some(4.0),
            "a frame of the plan in force waits for space"
        );
        assert_eq!(carried[1].blocking_recv(), Some(5.0));
    }
}

fn exchange(number: f32) -> PeerFrame {
    peer_frame(PeerBody::Partial(PartialGradient {
        turn: turn(),
        chunk: ChunkIndex(1),
        exchange: PartialExchange::FIRST,
        floats: vec![number],
        losses: Vec::new(),
    }))
}

#[test]
fn to_a_follower_gradients_of_two_turns_wait_for_space_and_half_of_those_of_a_third() {
    let (carrier, mut carried) = BoundedCarrier::of_peers(1);
    let (mut dispatcher, _outputs, _in_force) = dispatcher_with(carrier);
    let mut carried = carried.remove(0);
    let mut send = |step: u64| {
        let turn = Turn { step: Step(step), ..turn() };
        let gradient = |layer| {
            let g = vec![step as f32].into();
            Arc::new(LayerGradient { layer: LayerId(layer), turn, g })
        };
        let gradients = vec![gradient(0), gradient(1)];
        let body = PeerBody::StandbyUpdate { turn, before: None, gradients };
        assert!(dispatcher.send(NodeId(2), peer_frame(body)).is_ok(), "the device goes on");
    };
    [1, 2, 3, 2].into_iter().for_each(&mut send);
    let mut receive = |count| -> Vec<f32> {
        (0..count).map(|_| carried.blocking_recv().expect("it is sent")).collect()
    };
    assert_eq!(receive(6), [1.0, 1.0, 2.0, 2.0, 3.0, 2.0]);
    send(4);
    assert_eq!(receive(1), [4.0], "the other layer lacks the gradient of a turn");
}

#[test]
fn a_layer_in_training_is_offered_as_a_snapshot_that_leaves_memory_and_one_of_a_plan_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let snapshots = LayerSnapshots::new(folder.path().to_owned(), Bytes(0));
    let (sender, _carried) = channel();
    let (outbox, mut outputs) = mpsc::channel(1);
    let (_in_force, of_dispatcher) = watch::channel(Generation(1));
    let device = ("cpu".to_owned(), snapshots.clone());
    let carrier = RecordingCarrier(sender);
    let mut dispatcher = FrameDispatcher::new(carrier, outbox, device, of_dispatcher, None);
    let floats = || HostFloats::zeroed(5).expect("bytes");
    let layer = LayerId(3);
    let image = LayerImage { layer, version: Step(0), w: floats(), m: floats(), v: floats() };
    let mut leaves_memory = |body| {
        assert!(dispatcher.send(NodeId(2), peer_frame(body)).is_ok());
        let offered = outputs.try_recv().expect("it is offered at once");
        let moved = snapshots.release_memory(&WorkCounter::default());
        assert!(matches!(offered, DeviceOutput::Offer { .. }));
        moved.is_some()
    };
    assert!(!leaves_memory(PeerBody::Layer(Arc::new(image.clone()))));
    let image = Arc::new(image.into());
    assert!(leaves_memory(PeerBody::StandbyLayer { open: turn(), image }));
}

/// A step's exchange may be more than the queue to a peer holds: all of it arrives, and the device goes on.
#[test]
fn parts_that_replicas_exchange_wait_for_space() {
    let (carrier, mut carried) = BoundedCarrier::of_peers(1);
    let (mut dispatcher, _outputs, _in_force) = dispatcher_with(carrier);
    for number in [1.0, 2.0, 3.0] {
        assert!(dispatcher.send(NodeId(2), exchange(number)).is_ok(), "the device goes on");
    }
    drop(dispatcher);
    assert_eq!(rest(carried.remove(0)), [1.0, 2.0, 3.0]);
}
