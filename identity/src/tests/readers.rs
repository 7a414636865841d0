//! Whatever the bytes are, reading them ends in a value or a reason.

use proptest::prelude::*;
use rustls::pki_types::CertificateDer;

use super::super::certificate::{read_authority, read_member};
use super::super::*;
use super::bench::{NOW, authority};

#[test]
fn a_certificate_of_no_holder_or_of_two_is_refused() {
    let check = |names: &[&str], found| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let pair = rcgen::KeyPair::generate().unwrap();
        let made = rcgen::CertificateParams::new(names).unwrap().self_signed(&pair).unwrap();
        assert_eq!(read_member(made.der()), Err(CertificateFault::NotOneName { found }));
    };
    check(&[], 0);
    check(&["localhost"], 1);
    check(&["localhost", "127.0.0.1"], 2);
}

#[test]
fn an_authoritys_certificate_is_no_members() {
    let authority = authority();
    let fault = read_member(authority.certificate()).unwrap_err();
    assert!(matches!(fault, CertificateFault::WrongIdentity(_)), "{fault}");
    let member = authority.credentials(PeerRole::Worker, zbelastic_types::NodeId(1), NOW).unwrap();
    let fault = read_authority(&member.chain()[0]).unwrap_err();
    assert!(matches!(fault, CertificateFault::WrongIdentity(_)), "{fault}");
}

#[test]
fn a_certificate_has_an_end_and_nothing_behind_it() {
    let authority = authority();
    let mut bytes = authority.certificate().to_vec();
    assert!(read_authority(&bytes).is_ok());
    bytes.push(0);
    assert_eq!(read_authority(&bytes), Err(CertificateFault::Damaged));
    bytes.resize(CERTIFICATE_BYTES_MAX + 1, 0);
    let found = bytes.len();
    assert_eq!(read_authority(&bytes), Err(CertificateFault::TooLong { found }));
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(read_member(&bytes).is_err());
        prop_assert!(read_authority(&bytes).is_err());
        let chain = [CertificateDer::from(bytes)];
        prop_assert!(peer_of(&chain).is_err());
    }

    #[test]
    fn no_damaged_certificate_is_accepted(
        index in any::<prop::sample::Index>(),
        change in 1_u8..,
    ) {
        let authority = authority();
        let good = authority.credentials(PeerRole::Worker, zbelastic_types::NodeId(1), NOW).unwrap();
        let mut bytes = good.chain()[0].to_vec();
        let index = index.index(bytes.len());
        prop_assert!(read_member(&bytes[..index]).is_err());
        bytes[index] ^= change;
        let check = good.peer_check().unwrap();
        prop_assert!(check.check(&bytes.into(), &good.chain()[1..], NOW).is_err());
    }
}
