//! What `top` draws: figures, the curve of the loss, the nodes, and what happened last.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table};
use zbelastic_api::{
    JobPhaseStatus, JobStatus, MemberRole, MemberState, MemberStatus, StatusReport, escape,
};
use zbelastic_view::{Dashboard, HeadFigures, MarkKind, SourceState};
use zbelastic_wording::figures::{duration_text, grouped};

/// Rows of figures and of the bar below them.
const FIGURES_HEIGHT: u16 = 4;
/// From this height on the curve has a place beside nodes and events.
const CURVE_FROM_HEIGHT: u16 = 18;
/// Rows of the events, with their frame.
const EVENTS_HEIGHT: u16 = 5;
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

/// Draws all of it, as much as fits.
pub fn draw(frame: &mut Frame<'_>, dashboard: &Dashboard, state: &mut ScreenState) {
    let area = frame.area();
    let has_curve = area.height >= CURVE_FROM_HEIGHT;
    let curve = if has_curve { (area.height - FIGURES_HEIGHT) / 4 } else { 0 };
    let events = if area.height > EVENTS_HEIGHT + FIGURES_HEIGHT + 4 { EVENTS_HEIGHT } else { 0 };
    let [figures_area, curve_area, nodes_area, events_area, keys_area] = Layout::vertical([
        Constraint::Length(FIGURES_HEIGHT),
        Constraint::Length(curve),
        Constraint::Min(2),
        Constraint::Length(events),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_figures(frame, figures_area, dashboard);
    if has_curve {
        draw_curve(frame, curve_area, dashboard);
    }
    draw_nodes(frame, nodes_area, dashboard.status(), state);
    draw_events(frame, events_area, dashboard);
    let keys = " q quit   ↑ ↓ nodes   zbelastic ui: the same in a browser";
    frame.render_widget(Paragraph::new(keys).dim(), keys_area);
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, dashboard: &Dashboard) {
    let [first, second, third, bar] = Layout::vertical([Constraint::Length(1); 4]).areas(area);
    let Some(status) = dashboard.status() else {
        return frame.render_widget(Paragraph::new(" connecting"), first);
    };
    let job = status.job.as_ref();
    let name = job.map_or("", |job| job.name.as_str());
    let mut heading = vec![
        Span::raw(format!(" {} / {}  ", escape(&status.cluster.name), escape(name))).bold(),
        phase_span(job),
    ];
    if let SourceState::Lost { reason } = dashboard.source() {
        heading.push(Span::raw(format!("  not answering: {}", escape(reason))).red().bold());
    }
    frame.render_widget(Line::from(heading), first);
    frame.render_widget(Paragraph::new(job.map_or_else(String::new, training_line)), second);
    let head = dashboard.head().unwrap_or_default();
    frame.render_widget(Paragraph::new(cluster_line(status, &head)), third);
    let Some(job) = job else { return };
    let share = (job.step as f64 / job.step_count.max(1) as f64).clamp(0.0, 1.0);
    let label = format!("step {} of {}", grouped(job.step), grouped(job.step_count));
    let gauge = Gauge::default().ratio(share).label(label).gauge_style(Color::Blue);
    frame.render_widget(gauge, bar);
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

fn number(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "–".to_owned(), |number| format!("{number:.digits$}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

fn seconds(seconds: Option<f64>) -> String {
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.map_or_else(|| "–".to_owned(), duration_text)
}

fn training_line(job: &JobStatus) -> String {
    let speed = job.tokens_per_s.map_or_else(|| "–".to_owned(), |speed| grouped(speed as u64));
    format!(
        " loss {}  norm {}  {speed} tok/s  {} ms a step  {} left",
        number(job.loss, 4),
        number(job.gnorm, 3),
        number(job.step_ms, 0),
        seconds(job.eta_s),
    )
}

fn cluster_line(status: &StatusReport, head: &HeadFigures) -> String {
    let plan = status.plan.as_ref();
    let name = plan.map_or("no plan", |plan| plan.schedule.as_str());
    let bubble = percent(plan.and_then(|plan| plan.bubble_measured));
    let voters = &status.quorum;
    let price =
        head.price_left.map_or_else(String::new, |price| format!("  price left {price:.2}"));
    format!(
        " {name}  bubble {bubble}  goodput {}  workers {}  voters {}/{}  term {}{price}",
        percent(head.goodput),
        head.workers,
        voters.reachable.len(),
        voters.voters.len(),
        status.term,
    )
}

fn draw_curve(frame: &mut Frame<'_>, area: Rect, dashboard: &Dashboard) {
    let steps = dashboard.history().steps();
    let stride = steps.len().div_ceil(POINTS_MAX).max(1);
    let points = steps.step_by(stride).filter_map(|point| Some((point.step as f64, point.loss?)));
    let points: Vec<(f64, f64)> = points.collect();
    let block = Block::bordered().title(" loss ").border_style(Style::new().dim());
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return frame.render_widget(Paragraph::new(" no step is sealed yet").block(block), area);
    };
    let losses = points.iter().map(|point| point.1);
    let least = losses.clone().fold(f64::INFINITY, f64::min);
    let most = losses.fold(f64::NEG_INFINITY, f64::max).max(least + 1e-3);
    let x = Axis::default()
        .bounds([first.0, last.0.max(first.0 + 1.0)])
        .labels([first.0, last.0].map(|step| grouped(step as u64)));
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
    let shown = area.height.saturating_sub(3) as usize;
    state.first_node = state.first_node.min(members.len().saturating_sub(shown));
    let rows = members.iter().skip(state.first_node).map(|member| row(member, status));
    let widths = [
        Constraint::Length(14),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Fill(3),
    ];
    let header = Row::new(["node", "stage", "layers", "device", "memory", "state"]).bold();
    let title = format!(" nodes, {} ", members.len());
    let block = Block::bordered().title(title).border_style(Style::new().dim());
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

fn row(member: &MemberStatus, status: Option<&StatusReport>) -> Row<'static> {
    let leads = status.is_some_and(|status| status.leader == Some(member.id));
    let (state, colour) = match &member.standing {
        MemberState::Present if leads => ("leads".to_owned(), Color::Green),
        MemberState::Present if member.role == MemberRole::Controller => {
            ("controller".to_owned(), Color::Green)
        }
        MemberState::Present if member.stage.is_none() => ("standby".to_owned(), Color::Reset),
        MemberState::Present => ("present".to_owned(), Color::Green),
        MemberState::Draining => ("draining".to_owned(), Color::Yellow),
        MemberState::Lost { reason } => (format!("lost: {}", escape(reason)), Color::Red),
    };
    let memory = member.memory_used.map_or_else(|| "–".to_owned(), |bytes| bytes.to_string());
    Row::new([
        Span::raw(escape(&member.name).into_owned()),
        Span::raw(member.stage.map_or_else(|| "–".to_owned(), |stage| stage.to_string())),
        Span::raw(member.layers.clone().unwrap_or_else(|| "–".to_owned())),
        Span::raw(escape(&member.device).into_owned()),
        Span::raw(memory),
        Span::styled(state, colour),
    ])
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, dashboard: &Dashboard) {
    let count = area.height.saturating_sub(2) as usize;
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
    let block =
        Block::bordered().title(" decisions, newest first ").border_style(Style::new().dim());
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// The same as one line, for what is no terminal; `None` before the first status.
pub fn plain_line(dashboard: &Dashboard) -> Option<String> {
    let status = dashboard.status()?;
    if let SourceState::Lost { reason } = dashboard.source() {
        return Some(format!("not answering: {}", escape(reason)));
    }
    let head = dashboard.head().unwrap_or_default();
    let cluster = cluster_line(status, &head);
    let Some(job) = &status.job else { return Some(format!("no run {cluster}")) };
    let phase = phase_span(Some(job)).content;
    let step = format!("step {}/{}", job.step, job.step_count);
    Some(format!("{phase} {step}{}{cluster}", training_line(job)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use zbelastic_api::{ClusterEvent, EventKind, sample};
    use zbelastic_view::{Observation, RunCosts};

    fn dashboard() -> Dashboard {
        let costs = RunCosts { price_per_hour: Some(1.0), ..RunCosts::default() };
        let mut dashboard = Dashboard::new(costs);
        dashboard.observe(Observation::Status(Box::new(sample::status())));
        let what = "disk\u{1b}[2Jfull".to_owned();
        let warning = ClusterEvent::new(1, 5, EventKind::Warning { what });
        dashboard.observe(Observation::Events(vec![warning]));
        dashboard
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

    #[test]
    fn a_terminal_of_80_by_24_shows_the_run_its_nodes_and_what_happened() {
        let text = drawn(80, 24, &mut ScreenState::default());
        for expected in [
            "wiki / tiny  running",
            "loss 3.2145  norm 0.812  127,184 tok/s  412 ms a step",
            "zb-h1  bubble 2.1 %",
            "workers 3  voters 2/3  term 4",
            "step 1,280 of 10,000",
            "gpu-a",
            "0-4",
            "lost: connection closed",
            "q quit",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert!(!text.contains('\u{1b}') && text.contains("full"), "{text}");
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
