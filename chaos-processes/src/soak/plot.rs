//! Bytes on the disks of a soak's nodes as a picture: SVG that needs no script, font or style from
//! elsewhere.

use std::fmt::Write;

use super::SoakReport;

/// Lengths are in pixels.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// Lines across the plot.
const TICKS: u32 = 5;
const LEGEND_LINE: f64 = 16.0;
/// The colours of Okabe and Ito (2008), which people tell apart who do not see all of them.
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a8a8a"];
const STYLE: &str = "text{font:11px sans-serif;fill:#222}.title{font-size:13px;font-weight:bold}\
.page{fill:#fff}.grid{stroke:#ddd}polyline{fill:none;stroke-width:1.5}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.page{fill:#16181d}.grid{stroke:#333}}";

/// The picture: a line for each node, over the number of the checkpoint.
pub(super) fn svg(report: &SoakReport) -> String {
    let kept = report.samples.iter().flat_map(|sample| &sample.kept).copied();
    let most = kept.max().unwrap_or(0).max(1) as f64 * 1.1;
    let checkpoints = report.checkpoints.max(1) as f64;
    let x = |checkpoint: f64| LEFT + (WIDTH - LEFT - RIGHT) * checkpoint / checkpoints;
    let y = |bytes: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * bytes / most;
    let mut svg = head(report);
    for tick in 0..=TICKS {
        let share = f64::from(tick) / f64::from(TICKS);
        grid_line(&mut svg, y(most * share), most * share);
        let at = checkpoints * share;
        let (x, y) = (x(at), HEIGHT - BOTTOM + 16.0);
        line(
            &mut svg,
            &format!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{at:.0}</text>"),
        );
    }
    for (node, name) in report.nodes.iter().enumerate() {
        let colour = COLOURS[node % COLOURS.len()];
        let points: Vec<String> = report
            .samples
            .iter()
            .map(|sample| {
                format!("{:.1},{:.1}", x(sample.checkpoint as f64), y(sample.kept[node] as f64))
            })
            .collect();
        let points = points.join(" ");
        line(&mut svg, &format!("<polyline stroke=\"{colour}\" points=\"{points}\"/>"));
        let (x, y) = (WIDTH - RIGHT + 12.0, TOP + 10.0 + node as f64 * LEGEND_LINE);
        let name = escaped(name);
        line(
            &mut svg,
            &format!("<text x=\"{x}\" y=\"{y:.1}\" style=\"fill:{colour}\">{name}</text>"),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn head(report: &SoakReport) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\">\n<style>{STYLE}</style>\n"
    );
    let title = format!(
        "Checkpoints and texts on each node's disk over {} checkpoints of {}",
        report.checkpoints,
        mib(report.checkpoint_bytes as f64)
    );
    line(&mut svg, "<rect class=\"page\" width=\"100%\" height=\"100%\"/>");
    line(&mut svg, &format!("<text class=\"title\" x=\"{LEFT}\" y=\"22\">{title}</text>"));
    svg
}

fn grid_line(svg: &mut String, y: f64, bytes: f64) {
    let (right, label, text) = (WIDTH - RIGHT, LEFT - 6.0, mib(bytes));
    line(
        svg,
        &format!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"),
    );
    line(svg, &format!("<text x=\"{label}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>"));
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

fn line(svg: &mut String, text: &str) {
    writeln!(svg, "{text}").expect("a text takes all lines");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
