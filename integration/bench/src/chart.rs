//! Charts as SVG. Their text stays text, so that no font is needed to draw them.

use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (900, 480);
/// One for each part or line; dark enough for white paper, and told apart in grey.
const COLORS: [RGBColor; 4] =
    [RGBColor(242, 166, 90), RGBColor(179, 84, 30), RGBColor(110, 170, 220), RGBColor(23, 78, 130)];

/// A chart of either kind.
#[derive(Clone, Debug)]
pub(crate) enum Chart {
    Bars(Bars),
    Lines(Lines),
}

/// Bars of one part, or of several on top of each other.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    /// The file's name without its ending.
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) parts: &'static [&'static str],
    /// Name and parts of each.
    pub(crate) bars: Vec<(String, Vec<f64>)>,
}

/// Lines over the same places, on a logarithmic scale.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    /// The file's name without its ending.
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// What the places are, and their names.
    pub(crate) across: &'static str,
    pub(crate) at: Vec<String>,
    /// Name and values of each.
    pub(crate) lines: Vec<(String, Vec<f64>)>,
}

impl Chart {
    /// The file's name without its ending.
    pub(crate) fn file(&self) -> &'static str {
        match self {
            Self::Bars(bars) => bars.file,
            Self::Lines(lines) => lines.file,
        }
    }

    pub(crate) fn title(&self) -> &'static str {
        match self {
            Self::Bars(bars) => bars.title,
            Self::Lines(lines) => lines.title,
        }
    }

    /// The picture.
    pub(crate) fn svg(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            area.fill(&WHITE).context("could not draw a chart")?;
            match self {
                Self::Bars(bars) => bars.draw(&area)?,
                Self::Lines(lines) => lines.draw(&area)?,
            }
            area.present().context("could not draw a chart")?;
        }
        Ok(text)
    }
}

impl Bars {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> anyhow::Result<()> {
        let highest = self.bars.iter().map(|(_, parts)| parts.iter().sum()).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{}, {}", self.title, self.unit), ("sans-serif", 22))
            .margin(12)
            .y_label_area_size(64)
            .x_label_area_size(36)
            .build_cartesian_2d(0.0..self.bars.len() as f64, 0.0..highest * 1.12)?;
        // The names stand in the middle of their bars, where a numeric axis has no tick.
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_labels(8)
            .light_line_style(TRANSPARENT)
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;
        for (place, part) in self.parts.iter().enumerate() {
            let color = COLORS[(place + 1) % COLORS.len()];
            let bars = self.bars.iter().enumerate().map(|(at, (_, parts))| {
                let below = parts.iter().take(place).sum::<f64>();
                let above = below + parts.get(place).copied().unwrap_or(0.0);
                Rectangle::new([(at as f64 + 0.2, below), (at as f64 + 0.8, above)], color.filled())
            });
            let series = chart.draw_series(bars)?;
            series
                .label(*part)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
        }
        let text = |vertical: VPos| {
            let style = ("sans-serif", 15).into_font().into_text_style(area);
            style.pos(Pos::new(HPos::Center, vertical))
        };
        let names = self.bars.iter().enumerate().map(|(at, (name, _))| {
            EmptyElement::at((at as f64 + 0.5, 0.0)) + Text::new(name.clone(), (0, 8), text(VPos::Top))
        });
        chart.draw_series(names)?;
        let sums = self.bars.iter().enumerate().map(|(at, (_, parts))| {
            let sum = parts.iter().sum::<f64>();
            EmptyElement::at((at as f64 + 0.5, sum))
                + Text::new(format!("{sum:.0}"), (0, -4), text(VPos::Bottom))
        });
        chart.draw_series(sums)?;
        if self.parts.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .border_style(BLACK)
                .background_style(WHITE)
                .draw()?;
        }
        Ok(())
    }
}

impl Lines {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> anyhow::Result<()> {
        // A logarithm needs something.
        let values = || self.lines.iter().flat_map(|(_, values)| values.iter().map(|value| value.max(0.01)));
        let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(0.01, f64::max));
        let places = i32::try_from(self.at.len()).context("too many places")?;
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{}, {}", self.title, self.unit), ("sans-serif", 22))
            .margin(12)
            .y_label_area_size(64)
            .x_label_area_size(48)
            .build_cartesian_2d(-1..places, (least.min(most) / 1.5..most * 1.5).log_scale())?;
        let name = |place: &i32| {
            usize::try_from(*place).ok().and_then(|place| self.at.get(place)).cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .x_labels(self.at.len() + 2)
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&name)
            .x_desc(self.across)
            .y_label_formatter(&|value| format!("{value:.1}"))
            .draw()?;
        for ((name, values), color) in self.lines.iter().zip(COLORS.into_iter().cycle()) {
            let points = || (0..places).zip(values.iter().map(|value| value.max(0.01)));
            let series = chart.draw_series(LineSeries::new(points(), color.stroke_width(3)))?;
            series
                .label(name.clone())
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], color.stroke_width(3)));
            chart.draw_series(points().map(|point| Circle::new(point, 4, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK)
            .background_style(WHITE)
            .draw()?;
        Ok(())
    }
}
