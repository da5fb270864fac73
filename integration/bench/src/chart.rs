//! Charts as SVG. Labels are SVG text elements, so that drawing needs no fonts.

use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (900, 480);
/// One colour for each part or line, dark enough for white paper and distinguishable in greyscale.
const COLORS: [RGBColor; 4] =
    [RGBColor(242, 166, 90), RGBColor(179, 84, 30), RGBColor(110, 170, 220), RGBColor(23, 78, 130)];

/// A chart of either kind.
#[derive(Clone, Debug)]
pub(crate) enum FigureChart {
    Bars(BarChart),
    Lines(LineChart),
}

/// A bar chart; the bars may be stacked from several parts.
#[derive(Clone, Debug)]
pub(crate) struct BarChart {
    /// The name of the file without its extension.
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) parts: &'static [&'static str],
    /// The name and the parts of each bar.
    pub(crate) bars: Vec<(String, Vec<f64>)>,
}

/// A line chart with a logarithmic scale; all lines share the points of the x axis.
#[derive(Clone, Debug)]
pub(crate) struct LineChart {
    /// The name of the file without its extension.
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// The label of the x axis, and the labels of its points.
    pub(crate) x_label: &'static str,
    pub(crate) points: Vec<String>,
    /// The name and the values of each line.
    pub(crate) lines: Vec<(String, Vec<f64>)>,
}

impl FigureChart {
    /// The name of the file without its extension.
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

    /// Draws the chart as SVG.
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

impl BarChart {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> anyhow::Result<()> {
        let highest = self.bars.iter().map(|(_, parts)| parts.iter().sum()).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{}, {}", self.title, self.unit), ("sans-serif", 22))
            .margin(12)
            .y_label_area_size(64)
            .x_label_area_size(36)
            .build_cartesian_2d(0.0..self.bars.len() as f64, 0.0..highest * 1.12)?;
        // The names are drawn below the middle of their bars, where a numeric axis has no tick.
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_labels(8)
            .light_line_style(TRANSPARENT)
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;
        for (index, part) in self.parts.iter().enumerate() {
            let color = COLORS[(index + 1) % COLORS.len()];
            let bars = self.bars.iter().enumerate().map(|(at, (_, parts))| {
                let below = parts.iter().take(index).sum::<f64>();
                let above = below + parts.get(index).copied().unwrap_or(0.0);
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

impl LineChart {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> anyhow::Result<()> {
        // A logarithmic scale has no zero.
        let values = || self.lines.iter().flat_map(|(_, values)| values.iter().map(|value| value.max(0.01)));
        let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(0.01, f64::max));
        let count = i32::try_from(self.points.len()).context("too many points")?;
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{}, {}", self.title, self.unit), ("sans-serif", 22))
            .margin(12)
            .y_label_area_size(64)
            .x_label_area_size(48)
            .build_cartesian_2d(-1..count, (least.min(most) / 1.5..most * 1.5).log_scale())?;
        let name = |point: &i32| {
            usize::try_from(*point).ok().and_then(|point| self.points.get(point)).cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .x_labels(self.points.len() + 2)
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&name)
            .x_desc(self.x_label)
            .y_label_formatter(&|value| format!("{value:.1}"))
            .draw()?;
        for ((name, values), color) in self.lines.iter().zip(COLORS.into_iter().cycle()) {
            let points = || (0..count).zip(values.iter().map(|value| value.max(0.01)));
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
