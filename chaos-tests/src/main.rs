//! Lives clusters through faults.

use chaos_tests::case::Case;
use chaos_tests::life::live;
use chaos_tests::log::EventLog;
use chaos_tests::options::Model;

fn main() {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let is_float = std::env::args().any(|arg| arg == "float");
    let model = if is_float { Model::Float } else { Model::Digest };
    let (from, count) = (args[0], args.get(1).copied().unwrap_or(1));
    let mut failed = 0;
    let mut markers = chaos_tests::markers::Markers::default();
    let (mut steps, mut virt, mut faults, mut events) = (0, 0, 0, 0);
    for seed in from..from + count {
        let case = Case::draw(seed, model);
        let mut log = if count == 1 { EventLog::printing() } else { EventLog::quiet() };
        if count == 1 {
            println!("{}", case.options);
        }
        let outcome = live(&case, &mut log);
        markers.merge(&outcome.markers);
        steps += outcome.steps;
        virt += outcome.virtual_us;
        faults += outcome.faults;
        events += outcome.events;
        if let Some(failure) = outcome.failure {
            failed += 1;
            println!("seed {seed}: {failure}");
        } else if count == 1 {
            println!("{outcome:?} digest {:x}", log.digest());
        }
    }
    println!(
        "{failed} of {count} failed; steps {steps} virtual {}s faults {faults} events {events}",
        virt / 1_000_000
    );
    println!("{markers:?}");
    println!("missing {:?}", markers.missing());
}
