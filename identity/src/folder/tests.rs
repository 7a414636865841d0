use zbelastic_types::NodeId;

use super::super::role::PeerRole;
use super::*;

const CLUSTER: ClusterId = ClusterId(7);
const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const DAY_SECONDS: u64 = 24 * 60 * 60;

struct IdentityFixture {
    _kept: tempfile::TempDir,
    folder: PathBuf,
}

impl IdentityFixture {
    fn empty() -> Self {
        let kept = tempfile::tempdir().unwrap();
        let folder = kept.path().join("node").join("identity");
        Self { _kept: kept, folder }
    }

    fn of_controller() -> Self {
        let fixture = Self::empty();
        let authority = ClusterAuthority::create(CLUSTER, NOW).unwrap();
        authority.save(&fixture.folder).unwrap();
        credentials(&authority).save(&fixture.folder).unwrap();
        fixture
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn load(&self) -> Result<Credentials, IdentityFolderFault> {
        Credentials::load(&self.folder, Some(CLUSTER), NOW)
    }

    fn fault(&self) -> IdentityFolderFault {
        self.load().unwrap_err()
    }
}

fn credentials(authority: &ClusterAuthority) -> Credentials {
    authority.credentials(PeerRole::Controller, NodeId(1), NOW).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_identity_is_read_as_it_was_written() {
    let fixture = IdentityFixture::empty();
    let authority = ClusterAuthority::create(CLUSTER, NOW).unwrap();
    let written = credentials(&authority);
    written.save(&fixture.folder).unwrap();
    let read = fixture.load().unwrap();
    assert_eq!(read.identity(), written.identity());
    assert_eq!(read.serial(), written.serial());
    assert_eq!(read.chain(), written.chain());
    assert_eq!(read.roots(), written.roots());
    assert_eq!(read.key().digest(), written.key().digest());
}

#[test]
fn an_authority_is_read_as_it_was_written_and_still_issues() {
    let fixture = IdentityFixture::of_controller();
    let authority = ClusterAuthority::load(&fixture.folder, Some(CLUSTER)).unwrap();
    let issued = credentials(&authority);
    issued.check_own(NOW).unwrap();
    assert_eq!(fixture.load().unwrap().roots(), issued.roots());
}

#[test]
fn keys_and_folder_are_closed_to_others_and_nothing_is_left_lying() {
    let fixture = IdentityFixture::of_controller();
    assert_eq!(mode(&fixture.folder), 0o700);
    let mut names: Vec<_> = fs::read_dir(&fixture.folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [AUTHORITY_KEY_FILE, ROOTS_FILE, CERTIFICATE_FILE, KEY_FILE]);
    for name in names {
        assert_eq!(mode(&fixture.file(&name)), 0o600, "{name}");
    }
    assert!(check_permissions(&fixture.folder).is_empty());
}

#[test]
fn a_key_or_folder_that_others_may_open_is_refused_and_named() {
    let fixture = IdentityFixture::of_controller();
    for path in [fixture.folder.clone(), fixture.file(KEY_FILE)] {
        let closed = mode(&path);
        for open in [0o040, 0o004, 0o020, 0o001] {
            set_mode(&path, closed | open);
            let IdentityFolderFault::TooOpen { path: named, found, expected } = fixture.fault()
            else {
                panic!("{}", fixture.fault());
            };
            assert_eq!((named, found, expected), (path.clone(), closed | open, closed));
            assert_eq!(check_permissions(&fixture.folder).len(), 1);
        }
        set_mode(&path, closed);
        assert!(fixture.load().is_ok());
    }
    set_mode(&fixture.file(AUTHORITY_KEY_FILE), 0o644);
    let fault = ClusterAuthority::load(&fixture.folder, None).unwrap_err();
    assert!(matches!(fault, IdentityFolderFault::TooOpen { .. }), "{fault}");
    assert_eq!(check_permissions(&fixture.folder).len(), 1);
}

#[test]
fn what_is_missing_is_named() {
    let fixture = IdentityFixture::empty();
    assert!(
        matches!(fixture.fault(), IdentityFolderFault::Missing { path } if path == fixture.folder)
    );
    assert!(check_permissions(&fixture.folder).is_empty());
    for name in [KEY_FILE, ROOTS_FILE, CERTIFICATE_FILE] {
        let fixture = IdentityFixture::of_controller();
        let file = fixture.file(name);
        fs::remove_file(&file).unwrap();
        assert!(matches!(fixture.fault(), IdentityFolderFault::Missing { path } if path == file));
    }
}

#[test]
fn what_is_no_file_is_unreadable() {
    for name in [KEY_FILE, ROOTS_FILE, CERTIFICATE_FILE] {
        let fixture = IdentityFixture::of_controller();
        fs::remove_file(fixture.file(name)).unwrap();
        fs::create_dir(fixture.file(name)).unwrap();
        let fault = fixture.fault();
        assert!(matches!(fault, IdentityFolderFault::Unreadable { .. }), "{fault}");
    }
}

#[test]
fn what_is_damaged_is_named() {
    let texts = ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"];
    let long = "x".repeat(FILE_BYTES_MAX as usize + 1);
    for name in [KEY_FILE, ROOTS_FILE, CERTIFICATE_FILE] {
        for text in texts.into_iter().chain([long.as_str()]) {
            let fixture = IdentityFixture::of_controller();
            fs::write(fixture.file(name), text).unwrap();
            let fault = fixture.fault();
            assert!(matches!(fault, IdentityFolderFault::Damaged { .. }), "{name}: {fault}");
        }
    }
}

#[test]
fn a_certificate_cut_short_anywhere_is_damage_and_never_a_panic() {
    let fixture = IdentityFixture::of_controller();
    let whole = fs::read(fixture.file(CERTIFICATE_FILE)).unwrap();
    let first = whole.windows(9).position(|part| part == b"-----END ").unwrap();
    for length in (0..first).step_by(7) {
        fs::write(fixture.file(CERTIFICATE_FILE), &whole[..length]).unwrap();
        assert!(matches!(fixture.fault(), IdentityFolderFault::Damaged { .. }), "{length}");
    }
}

#[test]
fn a_key_of_someone_else_is_damage() {
    let fixture = IdentityFixture::of_controller();
    let other = IdentityFixture::of_controller();
    fs::copy(other.file(KEY_FILE), fixture.file(KEY_FILE)).unwrap();
    let IdentityFolderFault::Damaged { why, .. } = fixture.fault() else {
        panic!("{}", fixture.fault())
    };
    assert_eq!(why, IdentityFileDamage::Parts(CredentialsFault::OtherKey));
    fs::copy(other.file(AUTHORITY_KEY_FILE), fixture.file(AUTHORITY_KEY_FILE)).unwrap();
    let fault = ClusterAuthority::load(&fixture.folder, None).unwrap_err();
    assert!(matches!(fault, IdentityFolderFault::Damaged { .. }), "{fault}");
}

#[test]
fn a_certificate_of_another_authority_for_the_same_cluster_is_damage() {
    let fixture = IdentityFixture::of_controller();
    let other = IdentityFixture::of_controller();
    fs::copy(other.file(ROOTS_FILE), fixture.file(ROOTS_FILE)).unwrap();
    let IdentityFolderFault::Damaged { why, .. } = fixture.fault() else {
        panic!("{}", fixture.fault())
    };
    assert!(
        matches!(why, IdentityFileDamage::Untrusted(PeerIdentityRefusal::Untrusted(_))),
        "{why}"
    );
}

#[test]
fn an_identity_of_another_cluster_is_distinguished() {
    let fixture = IdentityFixture::of_controller();
    let expected = ClusterId(8);
    let check = |fault: IdentityFolderFault| {
        let IdentityFolderFault::OtherCluster { expected: reported, found, .. } = fault else {
            panic!("{fault}");
        };
        assert_eq!((reported, found), (expected, CLUSTER));
    };
    check(Credentials::load(&fixture.folder, Some(expected), NOW).unwrap_err());
    check(ClusterAuthority::load(&fixture.folder, Some(expected)).unwrap_err());
    assert!(Credentials::load(&fixture.folder, None, NOW).is_ok());
}

#[test]
fn an_identity_is_loaded_until_five_minutes_after_its_end() {
    let fixture = IdentityFixture::of_controller();
    let end = NOW.plus(30 * DAY_SECONDS + 300);
    assert!(Credentials::load(&fixture.folder, None, end).is_ok());
    let fault = Credentials::load(&fixture.folder, None, end.plus(1)).unwrap_err();
    assert!(matches!(fault, IdentityFolderFault::Clock { .. }), "{fault}");
    let early = NOW.minus(301);
    let fault = Credentials::load(&fixture.folder, None, early).unwrap_err().to_string();
    assert!(fault.contains("E2010") && fault.contains(&early.to_string()), "{fault}");
    assert!(fault.contains(&NOW.to_string()), "{fault}");
}

#[test]
fn a_renewed_certificate_takes_the_place_of_the_old_one() {
    let fixture = IdentityFixture::of_controller();
    let authority = ClusterAuthority::load(&fixture.folder, None).unwrap();
    let old = fixture.load().unwrap();
    let later = old.window().renew_after();
    let identity = old.identity();
    let issued =
        authority.issue(&old.key().requested(), identity.role, identity.node, later).unwrap();
    let renewed = old.renewed(issued.chain).unwrap();
    // A draft that a crash left is no obstacle.
    fs::write(fixture.file("cert.pem.part"), "half").unwrap();
    renewed.save(&fixture.folder).unwrap();
    let read = Credentials::load(&fixture.folder, None, later).unwrap();
    assert_eq!(read.serial(), renewed.serial());
    assert_ne!(read.serial(), old.serial());
}

#[test]
fn another_identity_is_never_replaced() {
    let fixture = IdentityFixture::of_controller();
    let foreign = ClusterAuthority::create(CLUSTER, NOW).unwrap();
    let fault = credentials(&foreign).save(&fixture.folder).unwrap_err();
    assert!(matches!(fault, IdentityFolderFault::Occupied { .. }), "{fault}");
    let fault = foreign.save(&fixture.folder).unwrap_err();
    assert!(matches!(fault, IdentityFolderFault::Occupied { .. }), "{fault}");
    fs::write(fixture.file(KEY_FILE), "damaged").unwrap();
    let fault = credentials(&foreign).save(&fixture.folder).unwrap_err();
    assert!(matches!(fault, IdentityFolderFault::Damaged { .. }), "{fault}");
}

#[test]
fn a_joiners_key_outlives_its_process() {
    let fixture = IdentityFixture::empty();
    let key = NodeKey::load_or_create(&fixture.folder).unwrap();
    let again = NodeKey::load_or_create(&fixture.folder).unwrap();
    assert_eq!(key.digest(), again.digest());
    let roots_file = fixture.file(ROOTS_FILE);
    assert!(matches!(fixture.fault(), IdentityFolderFault::Missing { path } if path == roots_file));
    fs::write(fixture.file(KEY_FILE), "damaged").unwrap();
    let fault = NodeKey::load_or_create(&fixture.folder).unwrap_err();
    assert!(matches!(fault, IdentityFolderFault::Damaged { .. }), "{fault}");
}

#[test]
fn the_authority_that_follows_takes_the_place_of_the_one_before_whenever_the_machine_dies() {
    let fixture = IdentityFixture::of_controller();
    let load = || ClusterAuthority::load(&fixture.folder, Some(CLUSTER));
    let load_next = || ClusterAuthority::load_next(&fixture.folder, Some(CLUSTER));
    let old = load().unwrap();
    assert!(matches!(load_next(), Err(IdentityFolderFault::Missing { .. })));
    // One that is announced anew, because no controller had the key of the first, takes its place.
    let first = old.successor(NOW).unwrap();
    first.save_next(&fixture.folder).unwrap();
    let next = old.successor(NOW).unwrap();
    // As if it died between the two files: there is none that follows, and the one there is issues.
    let key = fs::read(fixture.file(NEXT_KEY_FILE)).unwrap();
    next.save_next(&fixture.folder).unwrap();
    let new_key = fs::read(fixture.file(NEXT_KEY_FILE)).unwrap();
    fs::write(fixture.file(NEXT_KEY_FILE), key).unwrap();
    assert!(matches!(load_next(), Err(IdentityFolderFault::Damaged { .. })));
    assert_eq!(load().unwrap().pin(), old.pin());
    fs::write(fixture.file(NEXT_KEY_FILE), new_key).unwrap();
    assert_eq!((load().unwrap().pin(), load_next().unwrap().pin()), (old.pin(), next.pin()));
    assert_eq!(load().unwrap().bridge(), []);

    ClusterAuthority::succeed(&fixture.folder).unwrap();
    let succeeded = load().unwrap();
    assert_eq!((succeeded.pin(), succeeded.bridge()), (next.pin(), next.bridge()));
    assert!(matches!(load_next(), Err(IdentityFolderFault::Missing { .. })));
    succeeded.save(&fixture.folder).unwrap();
    assert!(matches!(old.save(&fixture.folder), Err(IdentityFolderFault::Occupied { .. })));
    // It follows the one that stands there, and no other.
    assert!(matches!(first.save_next(&fixture.folder), Err(IdentityFolderFault::Occupied { .. })));
}
