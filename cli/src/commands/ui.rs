//! `ui`: the live page of a cluster.

use std::io::Write;

use zbelastic_view::RunCosts;
use zbelastic_wording::{CommandError, CommandFailure};

use super::reach::connect;
use crate::args::UiArgs;
use crate::command_connection::request_addresses;
use crate::live_page::{ObservedCluster, browser_address, observe, start_server};
use crate::side_process::{end_with_lifeline, has_lifeline};
use crate::span_exporter::{SpanCollector, SpanExporter};

/// Runs `ui`, until the process is ended.
///
/// # Errors
/// If the cluster does not answer, or the page cannot be where it is to be.
pub fn run(args: &UiArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let is_child = has_lifeline();
    let collector = SpanCollector::of_environment("zbelastic")?;
    let (folder, addresses) = request_addresses(&args.client)?;
    let name = if is_child {
        end_with_lifeline()?;
        folder.read_admin()?.name
    } else {
        // A person who typed another cluster's address sees that at once.
        connect(&args.client)?.status().map_err(CommandFailure::from)?.cluster.name
    };
    let history = args.history.clone().unwrap_or_else(|| folder.events());
    let costs = RunCosts { price_per_hour: args.price, ..RunCosts::default() };
    let server = start_server(args.listen, costs, addresses.clone())?;
    let address = browser_address(&server);
    writeln!(out, "page    http://{address}/")?;
    writeln!(out, "metrics http://{address}/metrics")?;
    if !is_child {
        writeln!(out, "Ctrl-C ends the page, and nothing else")?;
    }
    if !server.address().ip().is_loopback() {
        writeln!(
            out,
            "note: a browser logs in with a token: zbelastic token create --role viewer"
        )?;
    }
    out.flush()?;
    let exporter = collector.map(|collector| SpanExporter::start(collector, &name)).transpose()?;
    let cluster = ObservedCluster { folder, addresses, history };
    observe(&cluster, &server.observer().into(), exporter)?;
    Ok(())
}
