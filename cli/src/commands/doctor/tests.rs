//! The command as a whole: a machine from its facts, and this machine.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use zbelastic_types::Bytes;

use super::{
    ClockFacts, ClusterFacts, DialOutcome, DiskFacts, DoctorProbes, FilesystemSpace, FolderState,
    GpuFacts, Ipv6, KernelFacts, LimitFacts, MachineFacts, MemoryFacts, NetworkFacts, findings,
    run, text,
};
use crate::args::DoctorArgs;

/// A machine on which every check is fine.
fn good() -> MachineFacts {
    let now = UNIX_EPOCH + Duration::from_secs(1_795_262_463);
    let space = FilesystemSpace {
        free: Bytes(100 << 30),
        files_free: 1 << 20,
        files: 1 << 21,
        is_read_only: false,
    };
    MachineFacts {
        cores: 8,
        kernels: KernelFacts {
            text: "avx2 kernels (also there: portable)".into(),
            are_vectors: true,
            peak_and_share: Some((1.1e11, 0.86)),
            bf16_peak_and_share: None,
        },
        memory: MemoryFacts {
            machine: Some(Bytes(32 << 30)),
            available: Some(Bytes(30 << 30)),
            group: None,
        },
        limits: LimitFacts {
            open_files: Some(1 << 16),
            open_files_max: Some(1 << 20),
            address_space: None,
        },
        network: NetworkFacts {
            receive_buffer_max: Some(Bytes(8 << 20)),
            ipv6: Ipv6::Present,
            unix_sockets: Ok(()),
            local_socket: ".zbelastic/local/local.sock".into(),
        },
        clock: ClockFacts { now, synced: Some(now - Duration::from_secs(300)), newest_file: None },
        disk: DiskFacts {
            folder: ".zbelastic".into(),
            state: FolderState::Absent,
            space: Ok(space),
            filesystem: Some("ext4".into()),
            sync_times: Ok(vec![Duration::from_micros(300); 20]),
            last_read: None,
        },
        permissions: Vec::new(),
        gpu: GpuFacts { visible: Vec::new(), cards: Ok(Vec::new()) },
        cluster: None,
    }
}

#[test]
fn a_good_machine_is_reported_as_good() {
    let expected = "\
ok       cores          8 cores
ok       kernels        avx2 kernels (also there: portable); a core reaches 110 GFLOP/s, a product 86 % of that
ok       memory         32.0 GiB
ok       gpu            none; a node computes on processors
ok       open-files     65536 may be open at once
ok       address-space  unlimited
ok       udp-buffer     a socket gets up to 8.00 MiB
ok       ipv6           present
ok       local-socket   Unix sockets work
ok       clock          set 5 minutes ago
ok       data-folder    .zbelastic would be made, on ext4
ok       disk-space     100.0 GiB free
ok       disk-files     1048576 more can be made
ok       disk-sync      half of 20 writes took up to 300 us
ok       permissions    nothing is open to others

this machine can be a node: no errors, no warnings, no notes
";
    assert_eq!(text(&findings(&good())), expected);
}

#[test]
fn a_poor_machine_is_reported_with_what_to_do() {
    let mut facts = good();
    facts.limits.open_files = Some(63);
    facts.network.receive_buffer_max = Some(Bytes(212_992));
    facts.disk.filesystem = Some("tmpfs".into());
    facts.permissions = vec!["identity/key.pem has permissions 0644".into()];
    let outcome = DialOutcome::Failed { why: "it did not answer".into() };
    facts.cluster = Some(ClusterFacts { address: "a:7000".into(), outcome });
    let expected = "\
ok       cores          8 cores
ok       kernels        avx2 kernels (also there: portable); a core reaches 110 GFLOP/s, a product 86 % of that
ok       memory         32.0 GiB
ok       gpu            none; a node computes on processors
error    open-files     63 may be open at once
  why: log, checkpoints and connections need up to 1024
  try: ulimit -n 1024
ok       address-space  unlimited
warning  udp-buffer     a socket gets up to 208.0 KiB
  why: a node requests 8.00 MiB; what does not fit is lost and sent again
  try: sysctl -w net.core.rmem_max=8388608
ok       ipv6           present
ok       local-socket   Unix sockets work
ok       clock          set 5 minutes ago
warning  data-folder    .zbelastic would be made, on tmpfs
  why: identity, log and checkpoints are gone when the machine starts anew
  try: a --data-dir on a disk of this machine
ok       disk-space     100.0 GiB free
ok       disk-files     1048576 more can be made
ok       disk-sync      half of 20 writes took up to 300 us
error    permissions    identity/key.pem has permissions 0644
  why: anyone who reads the key can act as this node, and a node with such a key does not start
  try: chmod go-rwx, and make the identity anew if others were on this machine
error    cluster        a:7000 cannot be reached: it did not answer
  try: let UDP to that port through the firewalls, and see that a member runs there

this machine cannot be a node: 3 errors, 2 warnings, no notes
";
    assert_eq!(text(&findings(&facts)), expected);
}

/// Runs the command on this machine with a folder of its own; dialing yields `outcome`, permissions
/// `fault`.
fn examine(outcome: DialOutcome, fault: Option<&str>) -> (ExitCode, String, Vec<PathBuf>) {
    let folder = tempfile::tempdir().expect("a folder");
    let args = DoctorArgs { data_dir: None, json: true, cluster: Some("a:7000".into()) };
    let checked_paths = RefCell::new(Vec::new());
    let permissions = |path: &Path| {
        let below = path.strip_prefix(folder.path()).expect("in the data folder");
        checked_paths.borrow_mut().push(below.to_owned());
        fault.map(str::to_owned).into_iter().collect()
    };
    let dial = |address: &str| {
        assert_eq!(address, "a:7000");
        outcome.clone()
    };
    let probes = DoctorProbes { folder: folder.path(), dial: &dial, permissions: &permissions };
    let mut out = Vec::new();
    let code = run(&args, &probes, &mut out).expect("a vector takes everything");
    (code, String::from_utf8(out).expect("text"), checked_paths.into_inner())
}

#[test]
fn the_probes_are_called_and_reported() {
    let reached = DialOutcome::Reached { took: Duration::from_millis(3) };
    let (_, report, checked_paths) = examine(reached, None);
    assert!(report.contains("a:7000 answered after 3 ms"), "{report}");
    assert!(report.contains("nothing is open to others"), "{report}");
    assert_eq!(checked_paths, [Path::new("identity"), Path::new("admin")]);
    let failed = DialOutcome::Failed { why: "silence".into() };
    let (code, report, _) = examine(failed, Some("key.pem is open"));
    assert!(report.contains("silence") && report.contains("key.pem is open"), "{report}");
    assert_ne!(code, ExitCode::SUCCESS);
}
