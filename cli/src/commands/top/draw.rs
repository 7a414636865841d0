//! What `top` draws: figures, the curve of the loss, the nodes, and what happened last.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, Borders, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table,
};
use zbelastic_api::{
    JobPhaseStatus, JobStatus, MemberRole, MemberState, MemberStatus, StatusReport, escape,
};
use zbelastic_view::{Dashboard, MarkKind, SourceState};
use zbelastic_wording::figures::grouped;

use super::figures::{cluster_figures, log_lag, progress_figures, training_figures, wrapped};
use crate::commands::node::round_trip_text;

/// Rows of the table of nodes beside those of nodes: its title and the names of its columns.
const TABLE_ROWS: u16 = 2;
/// Rows of the table at least: two nodes.
const NODES_ROWS_MIN: u16 = 4;
/// Rows from which on the curve has a place beside the decisions: with its title it has five of them then.
const CURVE_FROM_ROWS: u16 = 7;
/// Columns of a terminal from which on zones and round trips have a place.
const WIDE_FROM_COLUMNS: u16 = 100;
/// Points of the curve: two for each column of the widest terminal there is.
const POINTS_MAX: usize = 1024;

/// What a person has scrolled to.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScreenState {
    /// The first node that is shown.
    first_node: usize,
}

impl ScreenState {
    /// Scrolls the table of nodes; drawing it keeps it within its nodes.
    pub fn scroll(&mut self, lines: isize) {
        self.first_node = self.first_node.saturating_add_signed(lines);
    }
}

/// Rows of the parts of the screen, which lie below one another; the keys have the last row.
#[derive(Debug, PartialEq, Eq)]
struct ScreenRows {
    figures: u16,
    curve: u16,
    nodes: u16,
    events: u16,
}

impl ScreenRows {
    /// Nodes have the rows that they need, up to half of what figures leave, and so have figures of the
    /// screen; the curve and the decisions share the rest.
    fn of(height: u16, figures: u16, members: u16) -> Self {
        let figures = figures.min((height / 2).max(1));
        let left = height.saturating_sub(figures + 1);
        let nodes =
            members.saturating_add(TABLE_ROWS).min(left.div_ceil(2).max(NODES_ROWS_MIN)).min(left);
        let rest = left - nodes;
        let events = if rest < CURVE_FROM_ROWS { rest } else { rest * 2 / 5 };
        Self { figures, curve: rest - events, nodes, events }
    }
}

/// Draws all of it, as much as fits.
pub fn draw(frame: &mut Frame<'_>, dashboard: &Dashboard, state: &mut ScreenState) {
    let area = frame.area();
    let figures = figure_lines(dashboard, area.width.into());
    let members = dashboard.status().map_or(0, |status| status.members.len());
    let count = |rows: usize| u16::try_from(rows).unwrap_or(u16::MAX);
    // Behind the figures the bar.
    let rows = ScreenRows::of(area.height, count(figures.len() + 1), count(members));
    let rows = [rows.figures, rows.curve, rows.nodes, rows.events, 1].map(Constraint::Length);
    let [figures_area, curve_area, nodes_area, events_area, keys_area] =
        Layout::vertical(rows).areas(area);
    draw_figures(frame, figures_area, figures, dashboard);
    draw_curve(frame, curve_area, dashboard);
    draw_nodes(frame, nodes_area, dashboard.status(), state);
    draw_events(frame, events_area, dashboard);
    let keys = " q quit   ↑ ↓ nodes   zbelastic ui: the same in a browser";
    frame.render_widget(Paragraph::new(keys).dim(), keys_area);
}

/// The heading and the figures, in lines of this width.
fn figure_lines(dashboard: &Dashboard, width: usize) -> Vec<Line<'static>> {
    let Some(status) = dashboard.status() else { return vec![Line::raw(" connecting")] };
    let job = status.job.as_ref();
    let name = job.map_or("", |job| job.name.as_str());
    let mut heading = vec![
        Span::raw(format!(" {} / {}  ", escape(&status.cluster.name), escape(name))).bold(),
        phase_span(job),
    ];
    if let SourceState::Lost { reason } = dashboard.source() {
        heading.push(Span::raw(format!("  not answering: {}", escape(reason))).red().bold());
    }
    let head = dashboard.head().unwrap_or_default();
    let groups = [
        job.map_or_else(Vec::new, |job| training_figures(job, &head, held_out(dashboard))),
        cluster_figures(status, &head),
        progress_figures(status, dashboard),
    ];
    let lines = groups.iter().flat_map(|group| wrapped(group, width)).map(Line::raw);
    std::iter::once(Line::from(heading)).chain(lines).collect()
}

fn held_out(dashboard: &Dashboard) -> Option<f64> {
    dashboard.history().held_out().last().and_then(|(_, loss)| loss)
}

fn draw_figures(
    frame: &mut Frame<'_>,
    area: Rect,
    figures: Vec<Line<'static>>,
    dashboard: &Dashboard,
) {
    let [text, bar] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(figures), text);
    let Some(job) = dashboard.status().and_then(|status| status.job.as_ref()) else { return };
    let share = (job.step as f64 / job.step_count.max(1) as f64).clamp(0.0, 1.0);
    let label = format!("step {} of {}", grouped(job.step), grouped(job.step_count));
    let gauge = Gauge::default().ratio(share).label(label).gauge_style(Color::Blue);
    frame.render_widget(gauge, bar);
}

/// A part of the screen: a line with its title above it, and nothing at its sides.
fn titled(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title).border_style(Style::new().dim())
}

fn phase_span(job: Option<&JobStatus>) -> Span<'static> {
    let Some(job) = job else { return Span::raw("no run").dim() };
    match &job.phase {
        JobPhaseStatus::Running => Span::raw("running").green(),
        JobPhaseStatus::Waiting { reason } => {
            Span::raw(format!("waiting: {}", escape(reason))).yellow()
        }
        JobPhaseStatus::Paused => Span::raw("paused").yellow(),
        JobPhaseStatus::Done => Span::raw("done").green().bold(),
        JobPhaseStatus::Stopped => Span::raw("stopped").dim(),
        JobPhaseStatus::Halted { reason } => Span::raw(format!("halted: {}", escape(reason))).red(),
    }
}

fn draw_curve(frame: &mut Frame<'_>, area: Rect, dashboard: &Dashboard) {
    let steps = dashboard.history().steps();
    let stride = steps.len().div_ceil(POINTS_MAX).max(1);
    let points = steps.step_by(stride).filter_map(|point| Some((point.step as f64, point.loss?)));
    let points: Vec<(f64, f64)> = points.collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        let block = titled(" loss ".to_owned());
        return frame.render_widget(Paragraph::new(" no step is sealed yet").block(block), area);
    };
    let losses = points.iter().map(|point| point.1);
    let least = losses.clone().fold(f64::INFINITY, f64::min);
    let most = losses.fold(f64::NEG_INFINITY, f64::max).max(least + 1e-3);
    // Labels below the axis would take rows of the curve.
    let [from, to] = [first.0, last.0].map(|step| grouped(step as u64));
    let block = titled(format!(" loss, steps {from} to {to} "));
    let x = Axis::default().bounds([first.0, last.0.max(first.0 + 1.0)]);
    let y = Axis::default()
        .bounds([least, most])
        .labels([least, most].map(|loss| format!("{loss:.2}")));
    let curve = Dataset::default()
        .data(&points)
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Color::Cyan);
    frame.render_widget(Chart::new(vec![curve]).x_axis(x).y_axis(y).block(block), area);
}

fn draw_nodes(
    frame: &mut Frame<'_>,
    area: Rect,
    status: Option<&StatusReport>,
    state: &mut ScreenState,
) {
    let members = status.map_or(&[][..], |status| &status.members);
    // The workers first: a page of them is what is looked for.
    let place = |member: &&MemberStatus| {
        let is_controller = member.role == MemberRole::Controller;
        (is_controller, member.stage.unwrap_or(u32::MAX), member.id)
    };
    let mut members: Vec<&MemberStatus> = members.iter().collect();
    members.sort_by_key(place);
    let shown = area.height.saturating_sub(TABLE_ROWS) as usize;
    state.first_node = state.first_node.min(members.len().saturating_sub(shown));
    let is_wide = area.width >= WIDE_FROM_COLUMNS;
    let columns = |more| (0..).zip(COLUMNS).filter(move |(_, column)| more || !column.is_wide);
    let rows = members.iter().skip(state.first_node).map(|member| {
        let cells = cells(member, status);
        Row::new(columns(is_wide).map(|(at, _): (usize, _)| cells[at].clone()).collect::<Vec<_>>())
    });
    let header = Row::new(columns(is_wide).map(|(_, column)| column.name)).bold();
    let widths = columns(is_wide).map(|(_, column)| column.width);
    let title = format!(" nodes, {} ", members.len());
    frame.render_widget(Table::new(rows, widths).header(header).block(titled(title)), area);
}

/// A column of the table of nodes.
#[derive(Clone, Copy)]
struct NodeColumn {
    name: &'static str,
    width: Constraint,
    /// Whether it is there in wide terminals alone.
    is_wide: bool,
}

const fn column(name: &'static str, width: u16, is_wide: bool) -> NodeColumn {
    NodeColumn { name, width: Constraint::Length(width), is_wide }
}

const COLUMNS: [NodeColumn; 8] = [
    column("node", 14, false),
    column("stage", 6, false),
    column("layers", 9, false),
    column("device", 8, false),
    column("memory", 10, false),
    column("zone", 12, true),
    column("round trip", 10, true),
    NodeColumn { name: "state", width: Constraint::Fill(1), is_wide: false },
];

/// What each column has of a member.
fn cells(member: &MemberStatus, status: Option<&StatusReport>) -> [Span<'static>; COLUMNS.len()] {
    let text = |text: Option<String>| Span::raw(text.unwrap_or_else(|| "–".to_owned()));
    let given = |text: &str| (!text.is_empty()).then(|| escape(text).into_owned());
    let (state, colour) = state_text(member, status);
    [
        text(given(&member.name)),
        text(member.stage.map(|stage| stage.to_string())),
        text(member.layers.clone()),
        text(given(&member.device)),
        text(member.memory_used.map(|bytes| bytes.to_string())),
        text(given(&member.zone)),
        text(round_trip_text(member)),
        Span::styled(state, colour),
    ]
}

/// How a member stands, and the colour of that.
fn state_text(member: &MemberStatus, status: Option<&StatusReport>) -> (String, Color) {
    let leads = status.is_some_and(|status| status.leader == Some(member.id));
    match &member.standing {
        MemberState::Present if leads => ("leads".to_owned(), Color::Green),
        MemberState::Present if member.role == MemberRole::Controller => {
            let lag = member.log_behind.map(log_lag);
            let lag = lag.map_or_else(String::new, |lag| format!(", {lag}"));
            (format!("controller{lag}"), Color::Green)
        }
        MemberState::Present if member.stage.is_none() => ("standby".to_owned(), Color::Reset),
        MemberState::Present => ("present".to_owned(), Color::Green),
        MemberState::Draining => ("draining".to_owned(), Color::Yellow),
        MemberState::Lost { reason } => (format!("lost: {}", escape(reason)), Color::Red),
    }
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, dashboard: &Dashboard) {
    let count = area.height.saturating_sub(1) as usize;
    let lines = dashboard.marks().rev().take(count).map(|mark| {
        let style = match mark.kind {
            MarkKind::Lost | MarkKind::Rewind => Style::new().red(),
            MarkKind::Skip
            | MarkKind::Replay
            | MarkKind::Warning
            | MarkKind::Quorum
            | MarkKind::Draining => Style::new().yellow(),
            MarkKind::Joined | MarkKind::Running => Style::new().green(),
            MarkKind::Plan | MarkKind::Leader | MarkKind::Run => Style::new(),
            MarkKind::Checkpoint => Style::new().add_modifier(Modifier::DIM),
        };
        Line::styled(format!(" {}", escape(&mark.text)), style)
    });
    let lines: Vec<Line<'_>> = lines.collect();
    let block = titled(" decisions, newest first ".to_owned());
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// The same as one line, for what is no terminal; `None` before the first status.
pub fn plain_line(dashboard: &Dashboard) -> Option<String> {
    let status = dashboard.status()?;
    if let SourceState::Lost { reason } = dashboard.source() {
        return Some(format!("not answering: {}", escape(reason)));
    }
    let head = dashboard.head().unwrap_or_default();
    let line = |figures: &[String]| wrapped(figures, usize::MAX).concat();
    let cluster = line(&cluster_figures(status, &head));
    let Some(job) = &status.job else { return Some(format!("no run {cluster}")) };
    let phase = phase_span(Some(job)).content;
    let step = format!("step {}/{}", job.step, job.step_count);
    let training = line(&training_figures(job, &head, held_out(dashboard)));
    Some(format!("{phase} {step}{training}{cluster}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use zbelastic_api::{ClusterEvent, EventKind, StepTimeBreakdown, sample};
    use zbelastic_view::{Observation, RunCosts};

    /// Steps that were sealed, of the run and a warning, where a price is known.
    fn dashboard() -> Dashboard {
        let costs = RunCosts { price_per_hour: Some(1.0), ..RunCosts::default() };
        let mut status = sample::status();
        status.job.as_mut().expect("a run").flop_per_token = Some(9e6);
        for (member, zone) in status.members.iter_mut().zip(["a", "b", "a", "b", "b", "c"]) {
            member.zone = format!("rack-{zone}");
            member.log_behind = (member.role == MemberRole::Controller).then_some(2);
            member.peak_flop_per_s = Some(1_500_000_000_000);
        }
        let mut dashboard = Dashboard::new(costs);
        dashboard.observe(Observation::Status(Box::new(status)));
        let what = "disk\u{1b}[2Jfull".to_owned();
        let kinds = (1270..=1280)
            .map(step)
            .chain([EventKind::HeldOut { step: 1280, loss: Some(3.3) }])
            .chain([EventKind::Warning { what }]);
        let events = (0..).zip(kinds).map(|(at, kind)| ClusterEvent::new(at, 400 * at, kind));
        dashboard.observe(Observation::Events(events.collect()));
        dashboard
    }

    fn step(number: u64) -> EventKind {
        EventKind::Step {
            step: number,
            step_count: 10_000,
            loss: Some(4500.0 / number as f64),
            gnorm: Some(0.8),
            verdict: "keep".to_owned(),
            clip: Some(1.0),
            lr: 1e-3,
            ms: 400.0,
            tokens_per_s: 127_184.0,
            attempts: 1,
            bubble: Some(0.02),
            bubble_planned: Some(0.018),
            causes: Some(StepTimeBreakdown {
                planned_ms: 380.0,
                computation_ms: 20.0,
                ..StepTimeBreakdown::default()
            }),
            generation: 7,
            stages: 2,
            eta_s: Some(3733.0),
        }
    }

    fn drawn(width: u16, height: u16, state: &mut ScreenState) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &dashboard(), state)).expect("it is in memory");
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content.chunks(width.into());
        let line = |cells: &[ratatui::buffer::Cell]| -> String {
            cells.iter().map(ratatui::buffer::Cell::symbol).collect()
        };
        lines.map(line).collect::<Vec<_>>().join("\n")
    }

    fn check(text: &str, expected: &[&str]) {
        for expected in expected {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    /// Rows in which the curve has points: characters of braille.
    fn curve_rows(text: &str) -> usize {
        let has_points = |line: &&str| line.contains(|c| ('\u{2801}'..='\u{28ff}').contains(&c));
        text.lines().filter(has_points).count()
    }

    /// What a terminal of any size has room for.
    const EVERYWHERE: [&str; 17] = [
        "wiki / tiny  running",
        "loss 3.2145  norm 0.812  127,184 tok/s  412 ms a step  MFU 38.2 %  1h02 left",
        "held-out 3.3000",
        "zb-h1  bubble 2.1 %",
        "workers 3  voters 2/3  term 4",
        "price left 3.11",
        "checkpoint 1,200, 3m07 old, 2 copies",
        "planned 380.0 ms  computation +20.0",
        "between steps +0.0",
        "step 1,280 of 10,000",
        "loss, steps 1,270 to 1,280",
        "gpu-a",
        "0-4",
        "lost: connection closed",
        "controller, log 2 behind",
        "decisions, newest first",
        "q quit",
    ];

    #[test]
    fn a_terminal_of_80_by_24_shows_the_run_its_nodes_and_what_happened() {
        let text = drawn(80, 24, &mut ScreenState::default());
        check(&text, &EVERYWHERE);
        assert!(!text.contains('\u{1b}') && text.contains("full"), "{text}");
        assert!(curve_rows(&text) >= 3, "{text}");
        assert!(!text.contains("rack-a"), "{text}");
    }

    #[test]
    fn a_larger_terminal_has_zones_and_round_trips_and_a_higher_curve() {
        let text = drawn(120, 40, &mut ScreenState::default());
        check(&text, &EVERYWHERE);
        check(&text, &["zone", "rack-a", "round trip", "0.31 ms"]);
        assert!(curve_rows(&text) >= 10, "{text}");
    }

    #[test]
    fn nodes_have_the_rows_that_they_need_and_the_curve_has_what_is_left() {
        let rows = |figures, curve, nodes, events| ScreenRows { figures, curve, nodes, events };
        assert_eq!(ScreenRows::of(24, 7, 3), rows(7, 7, 5, 4));
        assert_eq!(ScreenRows::of(24, 8, 6), rows(8, 5, 8, 2));
        assert_eq!(ScreenRows::of(40, 7, 6), rows(7, 15, 8, 9));
        assert_eq!(ScreenRows::of(40, 7, 1000), rows(7, 10, 16, 6));
        assert_eq!(ScreenRows::of(5, 12, 6), rows(2, 0, 2, 0));
        assert_eq!(ScreenRows::of(1, 12, 6), rows(1, 0, 0, 0));
    }

    #[test]
    fn every_size_is_drawn_and_scrolling_stays_within_the_nodes() {
        for (width, height) in [(1, 1), (20, 5), (40, 10), (80, 24), (200, 60), (300, 100)] {
            let mut state = ScreenState::default();
            for lines in [0, -3, 1, 1000] {
                state.scroll(lines);
                drawn(width, height, &mut state);
                assert!(state.first_node <= 6, "there are six");
            }
        }
    }

    #[test]
    fn a_line_has_the_same_figures() {
        let line = plain_line(&dashboard()).expect("a status");
        assert!(line.starts_with("running step 1280/10000 loss 3.2145"), "{line}");
        assert!(!line.contains('\n') && plain_line(&Dashboard::new(RunCosts::default())).is_none());
    }
}
