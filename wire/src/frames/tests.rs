//! What one worker sends is what another expects, and becomes what was sent.

use zbelastic_config::{RunConfig, load_document};
use zbelastic_consensus::plan::{PlanReason, Promise};
use zbelastic_identity::{PeerIdentity, PeerRole};
use zbelastic_schedule::{
    Costs, LowerOptions, PipelineSize, Placement, PlacementShape, ScheduleKind, SharedOrder,
    Window, generate, generate_sized, lower, on_table, side_by_side, tie_ends,
};
use zbelastic_trainer::model::MicrobatchShape;
use zbelastic_trainer::plan::SliceBalance;
use zbelastic_types::{Attempt, ClusterId, Incarnation, LayerRange, Step};

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_trainer::model::model_layers;
use zbelastic_trainer::plan::TokenWork;
use zbelastic_transport::FrameRules;
use zbelastic_transport::frame::RuleError;

use zbelastic_transport::frame::FRAME_BYTES_MAX;

use super::*;

const GENERATION: Generation = Generation(70_000);
const FIRST: PartialExchange = PartialExchange::FIRST;
/// Layers of one stage: more than a frame has parts.
const LAYERS: u32 = 65;

/// A model of 130 layers.
fn config() -> RunConfig {
    let text = "[model]\nfamily = \"llama\"\nlayers = 64\nwidth = 4\nheads = 1\nmlp_width = 4\n\
                [train]\nseq_len = 4\n";
    load_document("deep.toml", text).expect("legal").config
}

fn holder(node: u64) -> Holder {
    Holder { node: NodeId(node), incarnation: Incarnation(3) }
}

/// Two stages of half the layers each, at nodes 1 and 2.
fn plan() -> PlanRecord {
    let compute = generate(ScheduleKind::OneFOneB, 2, 2).expect("the size is legal");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    PlanRecord {
        generation: GENERATION,
        stages: vec![holder(1), holder(2)],
        copies: vec![vec![StageIndex(1)], vec![StageIndex(0)]],
        promise: Promise::Kept,
        chunks: vec![LayerRange::new(0, LAYERS), LayerRange::new(LAYERS, 2 * LAYERS)],
        program: lower(&compute, options),
        from_step: Step(0),
        sources: Vec::new(),
        expected: Vec::new(),
        op_ticks_max: 50,
        reason: PlanReason::First,
    }
}

fn rules(config: &RunConfig, plan: &PlanRecord) -> Result<FrameRules, RuleError> {
    let me = NodeId(2);
    let batch = config.batch;
    FrameExpectations { me, model: &config.model, batch, plan: Some(plan), precopy: None }.rules()
}

/// What arrives at node 2 of what node 1 sends, if its rules let it.
fn arrive(frame: &OutgoingFrame, rules: &FrameRules) -> ReceivedFrame {
    arrive_from(NodeId(1), frame, rules)
}

fn arrive_from(node: NodeId, frame: &OutgoingFrame, rules: &FrameRules) -> ReceivedFrame {
    let parts: Vec<Vec<f32>> = frame.parts().iter().map(|part| part.to_vec()).collect();
    let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
    assert_eq!(rules.parts(node, frame.class()), Some(&lengths[..]));
    let cluster = ClusterId(1);
    let role = PeerRole::Worker;
    let from = PeerIdentity { cluster, role, node };
    let parts = parts.into_iter().map(Into::into).collect();
    ReceivedFrame { from, class: frame.class(), meta: frame.meta().to_vec(), parts }
}

fn gradients(config: &RunConfig, turn: Turn) -> Vec<Arc<LayerGradient>> {
    let specs = model_layers(&config.model);
    let each = (0..LAYERS).zip(&specs);
    let gradient = |(layer, spec): (u32, &zbelastic_trainer::model::LayerSpec)| LayerGradient {
        layer: LayerId(layer),
        turn,
        g: (0..spec.len())
            .map(|index| (layer as usize * 1000 + index) as f32)
            .collect::<Vec<f32>>()
            .into(),
    };
    each.map(gradient).map(Arc::new).collect()
}

/// The frames that a stage's gradient travels in.
fn gradient_frames(gradients: &[Arc<LayerGradient>]) -> Vec<OutgoingFrame> {
    let messages = GradientPart::messages(gradients, GRADIENT_FRAME_LIMITS);
    let count = messages.len() as u32;
    let body = |(index, parts)| {
        let number = MessageNumber { index, count };
        PeerBody::Gradients { turn: turn(), of: StageIndex(0), number, parts }
    };
    (0..).zip(messages).map(body).flat_map(frames).collect()
}

fn frames(body: PeerBody) -> Vec<OutgoingFrame> {
    frames_of(holder(1), body)
}

fn frames_of(sender: Holder, body: PeerBody) -> Vec<OutgoingFrame> {
    let frame = PeerFrame { generation: GENERATION, sender, body };
    let Ok(OutgoingMessage::Frames(frames)) = outgoing(frame) else { panic!("frames") };
    frames
}

fn turn() -> Turn {
    Turn { generation: GENERATION, attempt: Attempt(0), step: Step(7) }
}

#[test]
fn a_stage_of_more_layers_than_a_frame_has_parts_sends_its_gradient_in_two() {
    let config = config();
    let plan = plan();
    let rules = rules(&config, &plan).expect("every frame is short enough");
    let sent = gradients(&config, turn());
    let frames = gradient_frames(&sent);
    assert_eq!(frames.len(), 2);
    let mut received = Vec::new();
    for (at, frame) in (0..).zip(&frames) {
        let Ok(IncomingFrame::Whole(frame)) = incoming(arrive(frame, &rules)) else {
            panic!("parts are used as they arrive")
        };
        let PeerBody::Gradients { of: StageIndex(0), number, parts, .. } = frame.body else {
            panic!("a gradient")
        };
        assert_eq!((number.index, number.count), (at, 2));
        received.extend(parts.iter().map(|part| {
            assert_eq!(part.first(), 0, "no layer is longer than a frame");
            let layer = part.layer();
            let turn = part.turn();
            (layer, turn, part.wait().expect("no fault").to_vec())
        }));
    }
    let of = |g: &Arc<LayerGradient>| (g.layer, g.turn, g.g.wait().expect("no fault").to_vec());
    assert!(sent.iter().map(of).eq(received));
}

/// An embedding of the size of GPT-2's is no frame of half a gigabyte, and neither is what follows
/// it.
#[test]
fn a_long_layer_travels_in_pieces_of_16_mebibytes() {
    let len = 50_304 * 768;
    let floats = GRADIENT_FRAME_LIMITS.floats;
    let g = zbelastic_kernels::HostFloats::zeroed(len).expect("pages that nobody writes");
    let long = Arc::new(LayerGradient { layer: LayerId(3), turn: turn(), g: g.into() });
    let of_copies = GradientPart::messages(std::slice::from_ref(&long), GRADIENT_FRAME_LIMITS);
    let followed = pieces(long, LAYER_PIECES_MAX).map(|(_, parts)| parts);
    for cut in [of_copies, followed.collect()] {
        assert_eq!(cut.len(), len.div_ceil(floats));
        let firsts: Vec<usize> = cut.iter().map(|parts| parts[0].first()).collect();
        assert!(firsts.iter().copied().eq((0..len).step_by(floats)));
        assert!(cut.iter().all(|parts| parts.len() == 1 && parts[0].len() <= floats));
    }
    assert_eq!(
        piece_limits(1 << 32, LAYER_PIECES_MAX).floats,
        1 << 24,
        "longer, not more than fit"
    );
}

#[test]
fn a_piece_under_the_class_of_another_is_none() {
    let config = config();
    let plan = plan();
    let rules = rules(&config, &plan).expect("every frame is short enough");
    let frames = gradient_frames(&gradients(&config, turn()));
    let mut forged = arrive(&frames[1], &rules);
    forged.class = frames[0].class();
    let Err(fault) = incoming(forged) else { panic!("refused") };
    let expected = "a frame of piece 0 of a stage's gradient of plan 112 is one of piece 1 of a \
                    stage's gradient of plan 112 by its head";
    assert_eq!(fault.to_string(), expected);
}

/// Slices of equal time have unequal lengths, and each is accepted at its own.
#[test]
fn boundary_tensors_of_slices_are_as_long_as_their_slices() {
    let mut config = config();
    config.batch.cut_by = SliceBalance::Time;
    config.batch.microbatch = MicrobatchShape { sequences: 2, sequence_len: 64 };
    let size = PipelineSize { slice_count: 3, ..PipelineSize::of(ScheduleKind::Seq1F1B, 2, 2) };
    let compute = generate_sized(ScheduleKind::Seq1F1B, size).expect("the size is legal");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    let plan = PlanRecord { program: lower(&compute, options), ..plan() };
    let rules = rules(&config, &plan).expect("short enough");
    let cut = config.batch.cut(TokenWork::new(&config.model), 3).expect("a legal cut");
    assert_eq!(cut.lens().len(), 3, "no two slices are equally long");
    let mut sent: Vec<OutgoingFrame> = Vec::new();
    for slice in cut.slices() {
        let floats = vec![0.5; 2 * cut.len_of(slice) * config.model.width as usize];
        let pass = Pass { slice, ..Pass::new(1, 0) };
        let mode = PassMode::Training;
        let flow = Flow::Forward;
        sent.extend(frames(PeerBody::Frame(Frame {
            turn: turn(),
            mode,
            flow,
            pass,
            tensor: floats.into(),
        })));
        let Ok(IncomingFrame::Whole(found)) = incoming(arrive(&sent[slice.index()], &rules)) else {
            panic!("a whole frame")
        };
        assert!(matches!(found.body, PeerBody::Frame(frame) if frame.pass == pass));
    }
    let mut forged = arrive(&sent[1], &rules);
    forged.class = sent[2].class();
    let Err(fault) = incoming(forged) else { panic!("refused") };
    let expected = "a frame of a boundary tensor of slice 2 of plan 112 is one of a boundary \
                    tensor of slice 1 of plan 112 by its head";
    assert_eq!(fault.to_string(), expected);
}

/// What is computed in bfloat16 travels as that: half as long, and every bit of it arrives.
#[test]
fn boundary_tensors_in_bfloat16_travel_two_in_a_float() {
    let mut config = config();
    config.batch.microbatch = MicrobatchShape { sequences: 1, sequence_len: 2 };
    config.model.width = 4;
    let plan = plan();
    let len = 8;
    let rules = rules(&config, &plan).expect("short enough");
    // A number, minus zero, infinity, and not-a-numbers of all kinds.
    let halves = vec![0x3f80, 0x8000, 0x7f80, 0x7f81, 0xffff, 1, 0, 0x7fa0];
    assert_eq!(halves.len(), len);
    let mode = PassMode::Training;
    let flow = Flow::Backward;
    let pass = Pass::new(1, 3);
    let tensor = TensorHandle::from(HostTensor::Halves(halves.clone()));
    let sent = frames(PeerBody::Frame(Frame { turn: turn(), mode, flow, pass, tensor }));
    assert_eq!(sent[0].parts()[0].len(), len / 2);
    let Ok(IncomingFrame::Whole(found)) = incoming(arrive(&sent[0], &rules)) else {
        panic!("a whole frame")
    };
    let PeerBody::Frame(found) = found.body else { panic!("a boundary tensor") };
    assert_eq!((found.mode, found.flow, found.pass), (mode, flow, pass));
    assert_eq!(found.tensor.into_host(), Ok(HostTensor::Halves(halves)));
    let odd = [7u16, 8, 9];
    assert_eq!(unpaired(&paired(&odd), 3), odd);
    let mut forged = arrive(&sent[0], &rules);
    forged.parts[0] = vec![0.0; 3].into();
    let Err(fault) = incoming(forged) else { panic!("refused") };
    assert_eq!(fault.to_string(), "a frame of 3 pairs of numbers, its head says 4");
}

#[test]
fn frames_of_links_travel_without_floats() {
    let plan = plan();
    let rules = rules(&config(), &plan).expect("short enough");
    let (mode, flow, pass) = (PassMode::Training, Flow::Forward, Pass::new(1, 3));
    let body = |tensor| PeerBody::Frame(Frame { turn: turn(), mode, flow, pass, tensor });
    let tensor = TensorHandle::from(vec![1.0, 2.0]);
    let of = |body| PeerFrame { generation: GENERATION, sender: holder(1), body };
    let frame = of(body(tensor.clone()));
    let (announced, handle) = AnnouncedTensor::of(&frame).expect("a boundary tensor");
    assert_eq!(handle.len(), 2);
    let bodies = [
        LinkBody::Invite(vec![7; 128]),
        LinkBody::Announced { number: 5, len: 2, tensor: announced },
        LinkBody::Received(5),
        LinkBody::SenderEnded,
        LinkBody::ReceiverEnded,
    ];
    for body in bodies {
        let sent = LinkFrame { generation: GENERATION, sender: holder(1), body };
        let frame = sent.clone().frame();
        assert!(frame.parts().is_empty(), "numbers go another way");
        let Ok(IncomingFrame::Link(found)) = incoming(arrive(&frame, &rules)) else {
            panic!("a frame of a link")
        };
        assert_eq!(*found, sent);
    }
    let arrived = announced.arrived((GENERATION, holder(1)), tensor);
    let PeerBody::Frame(arrived) = arrived.body else { panic!("a boundary tensor") };
    assert_eq!(
        (arrived.turn, arrived.mode, arrived.flow, arrived.pass),
        (turn(), mode, flow, pass)
    );
    let request = of(PeerBody::Fetch { layer: LayerId(0), version: Step(1) });
    assert!(AnnouncedTensor::of(&request).is_none());
}

/// What a configuration that got past its own check would meet.
#[test]
fn a_head_has_an_end_and_nothing_behind_it() {
    let config = config();
    let plan = plan();
    let rules = rules(&config, &plan).expect("every frame is short enough");
    let frames = gradient_frames(&gradients(&config, turn()));
    let mut frame = arrive(&frames[0], &rules);
    frame.meta.push(0);
    assert!(matches!(incoming(frame), Err(FrameFault::Head(_))));
}

#[test]
fn a_boundary_tensor_that_is_too_long_is_refused_before_it_is_sent() {
    let mut config = config();
    let plan = plan();
    let floats = FRAME_BYTES_MAX as usize / size_of::<f32>();
    config.batch.microbatch.sequence_len = 1;
    config.batch.microbatch.sequences = floats / 4;
    assert!(rules(&config, &plan).is_ok());
    config.batch.microbatch.sequences = floats / 4 + 1;
    assert!(matches!(rules(&config, &plan), Err(RuleError::TooLong { .. })));
}

/// Two replicas over two stages: node 1 sends two parts of gradients, each as long as its chunk,
/// and losses behind the one that ends the model.
#[test]
fn what_twins_exchange_arrives_to_the_bit_at_the_length_of_its_chunk() {
    let config = config();
    let compute = generate(ScheduleKind::Chimera, 2, 6).expect("the size is legal");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    let ranges = [LayerRange::new(0, 3), LayerRange::new(3, 2 * LAYERS)];
    let plan = PlanRecord { program: lower(&compute, options), chunks: ranges.repeat(2), ..plan() };
    let rules = rules(&config, &plan).expect("short enough");
    let specs = model_layers(&config.model);
    let floats_of = |layers: LayerRange| -> usize {
        layers.layers().map(|layer| specs[layer.index()].len()).sum()
    };
    // Node 1 has chunks 0 and 3; the second replica has three of six microbatches.
    for (chunk, layers, losses) in [(2, ranges[0], 0), (1, ranges[1], 3)] {
        let floats: Vec<f32> = (0..floats_of(layers)).map(|i| i as f32 + 0.5).collect();
        let losses: Vec<f64> = (0..losses).map(|i| f64::from(i) + 1.0 / 3.0).collect();
        let chunk = ChunkIndex(chunk);
        let exchange = PartialExchange::FIRST;
        let partial = PartialGradient { turn: turn(), chunk, exchange, floats, losses };
        let sent = frames(PeerBody::Partial(partial.clone()));
        assert_eq!(sent.len(), 1);
        let Ok(IncomingFrame::Whole(found)) = incoming(arrive(&sent[0], &rules)) else {
            panic!("a worker's frame")
        };
        let PeerBody::Partial(found) = found.body else { panic!("a partial gradient") };
        assert_eq!(found, partial);
        let name = FrameClassName(sent[0].class()).to_string();
        assert_eq!(name, format!("piece 0 of chunk {chunk}'s exchange 0 of gradients of plan 112"));
    }
    let strange = TensorFrameKind::Partial(ChunkIndex(0), FIRST, 0).of(GENERATION);
    assert_eq!(rules.parts(NodeId(1), strange), None, "chunk 0 is node 1's own");
}

/// Four pipelines of one stage, and three stages for them: a worker gets floats of the sum of each subtree
/// that it is no part of, with the losses of all microbatches of that subtree, and of the sum of all.
#[test]
fn each_exchange_has_a_length_of_its_own() {
    let config = config();
    let column = generate(ScheduleKind::OneFOneB, 1, 2).expect("the size is legal");
    let grid = side_by_side(&vec![column; 4]).expect("alike");
    // Both siblings of chunk 0 are on stage 1.
    let cells = [0, 1, 1, 2].map(StageIndex);
    let table = Placement::of_table(PlacementShape::Line, 4, (3, 4), &cells).expect("legal");
    let costs = Costs::even(&table, 1.0, 1.0, 1.0, 0.0);
    let table = on_table(&grid, &table, &costs, SharedOrder::ByTime).expect("it runs to its end");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    let (model, batch) = (&config.model, config.batch);
    let floats: usize = model_layers(model).iter().map(|layer| layer.len()).sum();
    // By sender: exchange, part of the floats, losses.
    let grid_sends = [(2, 0, 2, 2), (3, 1, 2, 4), (2, 2, 2, 0)];
    let table_sends = [(2, 0, 2, 2), (2, 1, 2, 4), (2, 2, 2, 0)];
    for (compute, sends) in [(&grid, grid_sends), (&table, table_sends)] {
        let program = lower(compute, options);
        let stages: Vec<Holder> =
            (1..=u64::from(program.placement.stage_count())).map(holder).collect();
        let copies = vec![Vec::new(); stages.len()];
        let chunks = vec![LayerRange::new(0, 2 * LAYERS); 4];
        let plan = PlanRecord { program, chunks, stages, copies, ..plan() };
        let me = NodeId(1);
        let expected = FrameExpectations { me, model, batch, plan: Some(&plan), precopy: None };
        let rules = expected.rules().expect("short enough");
        for (from, exchange, part, losses) in sends {
            let partial = PartialGradient {
                turn: turn(),
                chunk: ChunkIndex(0),
                exchange: PartialExchange(exchange),
                // An odd one is longer in its upper half.
                floats: vec![0.5; floats / part],
                losses: vec![1.0 / 3.0; losses],
            };
            let sender = holder(from);
            let body = PeerBody::Partial(partial.clone());
            let sent = frames_of(sender, body);
            let arrived = arrive_from(sender.node, &sent[0], &rules);
            let Ok(IncomingFrame::Whole(found)) = incoming(arrived) else {
                panic!("a worker's frame")
            };
            let PeerBody::Partial(found) = found.body else { panic!("a partial gradient") };
            assert_eq!(found, partial);
        }
        let class = TensorFrameKind::Partial(ChunkIndex(0), FIRST, 0).of(GENERATION);
        assert_eq!(rules.parts(NodeId(4), class), None, "what node 4 has comes from node 3");
    }
}

/// Three stages: the first and the last send each other a matrix, and nobody else does.
#[test]
fn the_ends_of_a_tied_model_send_each_other_a_matrix() {
    let mut config = config();
    config.model.tied = true;
    let compute = generate(ScheduleKind::OneFOneB, 3, 5).expect("the size is legal");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    let program = tie_ends(&lower(&compute, options));
    let ends = [(0, 2), (2, 4), (4, 2 * LAYERS)];
    let chunks = ends.map(|(start, end)| LayerRange::new(start, end)).to_vec();
    let stages = [1, 2, 3].map(holder).to_vec();
    let copies = vec![Vec::new(); stages.len()];
    let plan = PlanRecord { program, chunks, stages, copies, ..plan() };
    let rules_of = |node| {
        let me = NodeId(node);
        let (model, batch) = (&config.model, config.batch);
        let expected = FrameExpectations { me, model, batch, plan: Some(&plan), precopy: None };
        expected.rules().expect("short enough")
    };
    let class = |chunk| TensorFrameKind::Partial(ChunkIndex(chunk), FIRST, 0).of(GENERATION);
    let len = (config.model.vocabulary * config.model.width) as usize;
    assert_eq!(rules_of(1).parts(NodeId(3), class(0)), Some(&[len][..]));
    assert_eq!(rules_of(3).parts(NodeId(1), class(2)), Some(&[len][..]));
    assert_eq!(rules_of(1).parts(NodeId(2), class(0)), None);
    assert_eq!(rules_of(2).parts(NodeId(1), class(1)), None);
}

/// The largest plan there may be: no two kinds of its frames share a class.
#[test]
fn every_frame_of_a_large_plan_has_a_class_of_its_own() {
    let chunks = 2 * zbelastic_consensus::job::STAGES_MAX as u32;
    let layers = zbelastic_consensus::job::LAYERS_MAX as u32;
    let exchanges = (0..PARTIAL_EXCHANGES as u8).map(PartialExchange);
    let partials = (0..chunks).flat_map(|chunk| {
        let of = ChunkIndex(chunk);
        // Pieces between the first and the last lie between theirs.
        let pieces = [0, 1, PARTIAL_PIECES_MAX - 1];
        let kinds =
            move |exchange| pieces.map(|piece| TensorFrameKind::Partial(of, exchange, piece));
        exchanges.clone().flat_map(kinds)
    });
    let updates = (0..layers).flat_map(|layer| {
        (0..LAYER_PIECES_MAX).map(move |piece| TensorFrameKind::Update(LayerId(layer), piece))
    });
    let gradients = (0..GRADIENT_FRAMES_MAX).map(TensorFrameKind::Gradients);
    let slices = (0..BOUNDARIES_MAX).flat_map(|slice| {
        [TensorFrameKind::Boundary(SliceIndex(slice)), TensorFrameKind::Halves(SliceIndex(slice))]
    });
    let others =
        [TensorFrameKind::Prefix, TensorFrameKind::Receipt, TensorFrameKind::Link].into_iter();
    let kinds = partials.chain(updates).chain(gradients).chain(slices).chain(others);
    let classes: Vec<u32> = kinds.map(|kind| kind.of(Generation(1)).0).collect();
    let distinct: std::collections::BTreeSet<u32> = classes.iter().copied().collect();
    assert_eq!(distinct.len(), classes.len());
    assert!(distinct.iter().all(|class| class >> KIND_BITS == 1), "none is another plan's");
    assert_ne!(
        TensorFrameKind::Prefix.of(Generation(1 << 7)),
        TensorFrameKind::Prefix.of(Generation(0))
    );
    assert_eq!(
        TensorFrameKind::Prefix.of(Generation(1 << 8)),
        TensorFrameKind::Prefix.of(Generation(0))
    );
}
