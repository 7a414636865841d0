//! Layers on standby whose updates come late, or whose owner is lost.

use std::cell::RefCell;

use super::*;

/// The last seal that the standby worker is briefed of, whatever has come from the owner.
fn brief(pair: &mut OwnerAndStandby) {
    let last = *pair.seals.last().expect("steps are sealed");
    send(&mut pair.standby, WorkerCommand::ApplySeal(last));
}

/// The standby worker is to load a plan from the open step on; it may use what it holds itself.
fn begin_plan(pair: &mut OwnerAndStandby) {
    let nodes = LayerSource::Nodes(vec![NodeId(OWNER), NodeId(STANDBY)]);
    let from = pair.ledger.open_turn().step.0;
    let input = load(plan(GENERATION.next(), STANDBY, from, nodes), pair.ledger.updates());
    pair.standby.handle(input).expect("a command");
}

/// The owner trains on while its gradients wait on the way: a few layers came, others were requested.
/// No further ones are, and what is here is followed.
#[test]
fn no_further_layer_is_requested_over_a_way_that_carries_no_more() {
    let mut pair = OwnerAndStandby::new(0.5, None);
    pair.train_until(2, in_order);
    pair.begin_pre_copy();
    let waiting = RefCell::new(Vec::new());
    let layers = Cell::new(0);
    let first_two = |frames: &mut Vec<PeerFrame>| {
        let (come, wait) = std::mem::take(frames).into_iter().partition(|frame| {
            let is_layer = matches!(frame.body, PeerBody::StandbyLayer { .. });
            layers.set(layers.get() + usize::from(is_layer));
            is_layer && layers.get() <= 2
        });
        *frames = come;
        waiting.borrow_mut().extend::<Vec<_>>(wait);
    };
    for version in 3..=5 {
        pair.train_until(version, first_two);
        brief(&mut pair);
    }
    assert_eq!(
        (layers.get(), pair.versions().len()),
        (4, 2),
        "two came, two more are on their way"
    );
    pair.standby.handle(RuntimeInput::Tick).expect("a tick");
    for frame in waiting.take() {
        let _ = pair.standby.handle(RuntimeInput::Peer(frame));
    }
    pair.train_until(7, in_order);
    assert!(pair.layers() > 4, "there are others");
    let followed: Vec<LayerId> = (0..4).map(LayerId).collect();
    assert_eq!(pair.reported_layers, followed, "the others come when the plan begins");
    assert_eq!(pair.versions(), [6; 4]);
}

/// What its owner had sent before the plan began is a third of what the layers are.
#[test]
fn updates_on_their_way_are_waited_for_when_a_plan_begins() {
    for comes in [true, false] {
        let mut pair = OwnerAndStandby::new(0.5, None);
        pair.train_until(2, in_order);
        pair.begin_pre_copy();
        pair.train_until(4, in_order);
        let mut waiting = Vec::new();
        let wait = RefCell::new(&mut waiting);
        pair.train_until(6, |frames| wait.borrow_mut().append(frames));
        brief(&mut pair);
        begin_plan(&mut pair);
        assert_eq!(fetched(&mut pair.standby), [], "two updates of each may come");
        (0..40).for_each(|_| pair.standby.handle(RuntimeInput::Tick).expect("a tick"));
        if comes {
            for frame in waiting {
                let _ = pair.standby.handle(RuntimeInput::Peer(frame));
                pair.standby.handle(RuntimeInput::Tick).expect("a tick");
            }
            assert_eq!(fetched(&mut pair.standby), []);
            assert!(pair.standby.active_stage().is_some(), "it has its layers");
        } else {
            (0..11).for_each(|_| pair.standby.handle(RuntimeInput::Tick).expect("a tick"));
            let all: Vec<LayerId> = (0..pair.layers()).map(LayerId).collect();
            assert_eq!(fetched(&mut pair.standby), all, "they do not");
        }
    }
}

/// The inventory of the standby worker.
fn inventory(pair: &mut OwnerAndStandby) -> Vec<(LayerId, Step, Digest)> {
    send(&mut pair.standby, WorkerCommand::TakeInventory { holder: holder(STANDBY), index: 7 });
    let layers =
        std::iter::from_fn(|| pair.standby.poll_output()).find_map(|output| match output {
            RuntimeOutput::Event(WorkerEvent::Inventory { layers, .. }) => Some(layers),
            RuntimeOutput::Event(_)
            | RuntimeOutput::Peer { .. }
            | RuntimeOutput::Read { .. }
            | RuntimeOutput::Write { .. }
            | RuntimeOutput::Outer(_)
            | RuntimeOutput::Evaluated { .. } => None,
        });
    let layers = layers.expect("it is reported").into_iter();
    layers.map(|held| (held.layer, held.version, held.digest)).collect()
}

/// Its owner may be lost before the plan begins that the layers were copied for: they are sealed, and
/// others load them. One that lacks an update is at the version before.
#[test]
fn what_is_on_standby_is_held_at_the_version_that_it_has_reached() {
    let mut pair = OwnerAndStandby::new(0.5, None);
    pair.train_until(2, in_order);
    pair.begin_pre_copy();
    pair.train_until(4, in_order);
    let last = LayerId(pair.layers() - 1);
    let lacks = |frame: &PeerFrame| match &frame.body {
        PeerBody::StandbyUpdate { gradients, .. } => gradients.iter().all(|g| g.layer != last),
        PeerBody::StandbyLayer { .. }
        | PeerBody::Frame(_)
        | PeerBody::Prefix(_)
        | PeerBody::Partial(_)
        | PeerBody::Gradients { .. }
        | PeerBody::Layer(_)
        | PeerBody::Fetch { .. }
        | PeerBody::StandbyRequest { .. } => true,
    };
    let one_layer_each = |frames: &mut Vec<PeerFrame>| {
        for frame in std::mem::take(frames) {
            let PeerBody::StandbyUpdate { turn, before, gradients } = &frame.body else {
                frames.push(frame);
                continue;
            };
            frames.extend(gradients.iter().map(|gradient| {
                let gradients = vec![gradient.clone()];
                let body = PeerBody::StandbyUpdate { turn: *turn, before: *before, gradients };
                PeerFrame { body, ..frame.clone() }
            }));
        }
        frames.retain(lacks);
    };
    pair.train_until(5, one_layer_each);
    brief(&mut pair);
    let held = inventory(&mut pair);
    while pair.version() < pair.ledger.open_turn().step {
        pair.owner.run_next();
        pair.deliver();
    }
    let version = pair.version();
    let executor = pair.owner.active_stage().expect("it trains").engine().executor();
    let digests: BTreeMap<LayerId, Digest> = executor.digests().into_iter().collect();
    for (layer, at, digest) in &held {
        let is_late = *layer == last;
        assert_eq!(*at < version, is_late, "layer {layer} at {at}, {version} is sealed");
        assert!(is_late || digests[layer] == *digest, "layer {layer}");
    }
    assert_eq!(held.len() as u32, pair.layers());
    let body = PeerBody::Fetch { layer: LayerId(0), version };
    let fetch = PeerFrame { generation: GENERATION.next(), sender: holder(3), body };
    pair.standby.handle(RuntimeInput::Peer(fetch)).expect("it sends it");
}
