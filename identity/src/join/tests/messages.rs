//! The messages as bytes, well-formed and not.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::super::super::*;
use super::super::message::{JoinRequest, encode};
use super::super::proof::ChannelBinding;

const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const HERE: ChannelBinding = ChannelBinding([5; 32]);

fn request<'a>(name: &'a str, request: &'a [u8], addresses: usize) -> JoinRequest<'a> {
    let address: SocketAddr = "[2001:db8::1]:65535".parse().unwrap();
    JoinRequest {
        token: JoinTokenId(7),
        role: PeerRole::Worker,
        name,
        request,
        proof: [3; 32],
        clock: NOW,
        addresses: vec![address; addresses],
    }
}

fn from() -> SocketAddr {
    "192.0.2.1:5000".parse().unwrap()
}

async fn read(message: &JoinRequest<'_>) -> Result<JoinAttempt, JoinReadFault> {
    read_join(&mut encode(message).as_slice(), HERE, from(), NOW).await
}

#[tokio::test]
async fn the_largest_request_fits_and_one_address_more_does_not() {
    let name = "x".repeat(63);
    let key = NodeKey::generate().signing_request();
    let longest = vec![0; REQUEST_BYTES_MAX];
    assert!(encode(&request(&name, &longest, 8)).len() <= JOIN_REQUEST_BYTES_MAX);
    assert!(read(&request(&name, &key, 8)).await.is_ok());
    let fault = read(&request(&name, &key, 9)).await.unwrap_err();
    assert!(matches!(fault, JoinReadFault::Message(JoinMessageFault::Damaged)), "{fault}");
}

#[tokio::test]
async fn a_megabyte_is_read_no_further_than_the_limit() {
    let bytes = vec![0; 1 << 20];
    let mut rest = bytes.as_slice();
    let fault = read_join(&mut rest, HERE, from(), NOW).await.unwrap_err();
    let found = JOIN_REQUEST_BYTES_MAX + 1;
    let JoinReadFault::Message(fault) = fault else { panic!("{fault}") };
    assert_eq!(fault, JoinMessageFault::TooLong { found, maximum: JOIN_REQUEST_BYTES_MAX });
    assert_eq!(rest.len(), bytes.len() - found);
}

#[tokio::test]
async fn a_name_that_is_none_is_refused_as_such() {
    let key = NodeKey::generate().signing_request();
    for name in ["", "GPU", "a\x1b[31m", "<script>", &"x".repeat(64)] {
        let fault = read(&request(name, &key, 0)).await.unwrap_err();
        let JoinReadFault::Refused(refusal) = fault else { panic!("{fault}") };
        assert_eq!(refusal, JoinRefusal::WrongName(NameRefusal::Form(NodeNameFault)));
    }
}

#[tokio::test]
async fn a_signing_request_that_is_none_is_refused_as_such() {
    let fault = read(&request("gpu-7", b"none", 0)).await.unwrap_err();
    let JoinReadFault::Refused(refusal) = fault else { panic!("{fault}") };
    assert_eq!(refusal, JoinRefusal::WrongRequest(SigningRequestFault::Damaged));
}

#[tokio::test]
async fn a_clock_may_be_five_minutes_off() {
    let key = NodeKey::generate().signing_request();
    for (clock, is_read) in [(300, true), (301, false)] {
        for clock in [NOW.plus(clock), NOW.minus(clock)] {
            let message = JoinRequest { clock, ..request("gpu-7", &key, 0) };
            assert_eq!(read(&message).await.is_ok(), is_read);
        }
    }
}

#[test]
fn a_message_is_consumed_to_its_last_byte() {
    let key = NodeKey::generate().signing_request();
    let mut bytes = encode(&request("gpu-7", &key, 2));
    assert!(JoinRequest::decode(&bytes).is_ok());
    assert_eq!(JoinRequest::decode(&bytes[..bytes.len() - 1]), Err(JoinMessageFault::Damaged));
    bytes.push(0);
    assert_eq!(JoinRequest::decode(&bytes), Err(JoinMessageFault::Damaged));

    let mut bytes = encode(&JoinAnswer::Refused(JoinRefusal::NotReady));
    assert!(JoinAnswer::decode(&bytes).is_ok());
    bytes.push(0);
    assert_eq!(JoinAnswer::decode(&bytes), Err(JoinMessageFault::Damaged));
}

#[test]
fn the_largest_answer_fits() {
    let authority = ClusterAuthority::create(zbelastic_types::ClusterId(7), NOW).unwrap();
    let chain = vec![vec![0_u8; CERTIFICATE_BYTES_MAX].into(); CHAIN_CERTIFICATES_MAX];
    let window = ValidityWindow { not_before: NOW, not_after: NOW };
    let issued = IssuedCertificate { chain, serial: SerialNumber(vec![1]), window };
    let address: SocketAddr = "[2001:db8::1]:65535".parse().unwrap();
    let node = zbelastic_types::NodeId(u64::MAX);
    let contact = ControllerContact { node, addresses: vec![address; ADDRESSES_MAX] };
    let controllers = vec![contact; CONTROLLERS_MAX];
    let secret = Some(authority.secret());
    let grant = JoinGrant::new(authority.cluster(), node, &issued, controllers, secret);
    let answer = JoinAnswer::Granted(grant);
    let bytes = encode(&answer);
    assert!(bytes.len() <= JOIN_ANSWER_BYTES_MAX, "{}", bytes.len());
    assert_eq!(JoinAnswer::decode(&bytes), Ok(answer));
}

#[test]
fn a_count_that_was_made_up_is_damage() {
    // A refusal of kind `NotLeader` that announces 2^32 - 1 addresses and holds none.
    let not_leader = encode(&JoinAnswer::Refused(JoinRefusal::NotLeader { leader: Vec::new() }));
    let (last, kind) = not_leader.split_last().unwrap();
    assert_eq!(*last, 0);
    let bytes = [kind, &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    assert_eq!(JoinAnswer::decode(&bytes), Err(JoinMessageFault::Damaged));
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = JoinRequest::decode(&bytes);
        let _ = JoinAnswer::decode(&bytes);
    }

    #[test]
    fn no_damage_makes_a_reader_panic(
        index in any::<prop::sample::Index>(),
        change in 1_u8..,
        addresses in 0_usize..9,
    ) {
        let key = [7; 200];
        let mut bytes = encode(&request("gpu-7", &key, addresses));
        let index = index.index(bytes.len());
        bytes[index] ^= change;
        let _ = JoinRequest::decode(&bytes);
        prop_assert!(JoinRequest::decode(&bytes[..index]).is_err());
    }
}
