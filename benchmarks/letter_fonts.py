"""The font families of the letters in auto_datasets.py, one file of each, by Debian package.

The packages are those of Debian bookworm. Each line names a folder in FONTS and then files in it:
text, display, handwriting and typewriter faces with the letters a to z (a few draw them as
capitals).
"""

from pathlib import Path

FONTS = Path("/usr/share/fonts")

TRAINING_FONTS = {
    "fonts-adf-baskervald": "truetype/adf BaskervaldADFStd.otf",
    "fonts-adf-gillius": "truetype/adf GilliusADF-Regular.otf",
    "fonts-adf-ikarius": "truetype/adf IkariusADFStd-Regular.otf",
    "fonts-adf-mekanus": "truetype/adf MekanusADFStd-Regular.otf",
    "fonts-adf-oldania": "truetype/adf OldaniaADFStd-Regular.otf",
    "fonts-adf-romande": "truetype/adf RomandeADFStd-Regular.otf",
    "fonts-adf-universalis": "truetype/adf UniversalisADFStd-Regular.otf",
    "fonts-adf-verana": "truetype/adf Verana-Regular.otf",
    "fonts-aenigma": "truetype/aenigma 36daythk.ttf acknowtt.ttf alphbeta.ttf backlash.ttf "
    "bendable.ttf candystr.ttf crackdr2.ttf decrepit.ttf entlayra.ttf kaliberr.ttf queasy.ttf "
    "wobbly.ttf",
    "fonts-agave": "truetype/agave agave-r-autohinted.ttf",
    "fonts-allerta": "opentype/allerta allerta_stencil.otf",
    "fonts-averia-gwf": "truetype/averia-gwf AveriaGWF-Regular.ttf",
    "fonts-b612": "opentype/b612 B612-Regular.otf",
    "fonts-bebas-neue": "opentype/bebas-neue BebasNeue-Regular.otf",
    "fonts-beteckna": "truetype/beteckna BetecknaGS.ttf",
    "fonts-breip": "truetype/breip Breip.ttf",
    "fonts-bwht": "opentype/bwht BecauseWeBuild-Regular.otf BecauseWeLearn-Regular.otf "
    "BecauseWeOrganize-Regular.otf",
    "fonts-cabin": "opentype/cabin Cabin-Regular.otf",
    "fonts-cardo": "truetype/cardo Cardo104s.ttf",
    "fonts-cherrybomb": "opentype/cherrybomb CherryBomb-Regular.otf",
    "fonts-comfortaa": "truetype/comfortaa Comfortaa-Regular.ttf",
    "fonts-dancingscript": "opentype/dancingscript DancingScript-Regular.otf",
    "fonts-dejavu-core": "truetype/dejavu DejaVuSans.ttf DejaVuSerif.ttf",
    "fonts-dkg-handwriting": "truetype/fifthhorseman dkg.ttf",
    "fonts-dosis": "opentype/dosis Dosis-Book.otf",
    "fonts-essays1743": "truetype/essays1743 Essays1743.ttf",
    "fonts-eurofurence": "truetype/eurofurence eurof55.ttf",
    "fonts-fanwood": "truetype/fanwood Fanwood.otf",
    "fonts-femkeklaver": "truetype/femkeklaver femkeklaver.ttf",
    "fonts-firacode": "truetype/firacode FiraCode-Regular.ttf",
    "fonts-freefont-ttf": "truetype/freefont FreeMono.ttf FreeSans.ttf FreeSerif.ttf",
    "fonts-gfs-didot": "opentype/didot GFSDidot.otf",
    "fonts-gnutypewriter": "truetype/gnutypewriter GNUTypewriter.ttf",
    "fonts-gotico-antiqua": "opentype/gotico-antiqua Hamlet-Cicero12.otf Spira-ProtoRoman110R.otf",
    "fonts-goudybookletter": "opentype/sortsmill GoudyBookletter1911.otf",
    "fonts-hack": "truetype/hack Hack-Regular.ttf",
    "fonts-humor-sans": "truetype/humor-sans Humor-Sans.ttf",
    "fonts-junction": "opentype/junction Junction.otf",
    "fonts-jura": "opentype/jura Jura-Regular.otf",
    "fonts-kaushanscript": "opentype/kaushanscript KaushanScript-Regular.otf",
    "fonts-klaudia-berenika": "truetype/klaudia-berenika Klaudia.ttf",
    "fonts-lato": "truetype/lato Lato-Regular.ttf",
    "fonts-le-murmure": "opentype/le-murmure le-murmure.otf",
    "fonts-leckerli-one": "truetype/leckerli-one LeckerliOne-Regular.ttf",
    "fonts-linuxlibertine": "opentype/linux-libertine LinBiolinum_R.otf LinLibertine_R.otf",
    "fonts-manrope": "truetype/manrope Manrope-Regular.ttf",
    "fonts-monofur": "truetype/monofur monof55.ttf",
    "fonts-national-park": "opentype/national-park NationalPark-Regular.otf",
    "fonts-ocr-a": "truetype/ocr-a OCRA.ttf",
    "fonts-okolaks": "truetype/okolaks okolaksRegular.ttf",
    "fonts-oldstandard": "truetype/fonts-oldstandard OldStandard-Regular.ttf",
    "fonts-opendyslexic": "opentype/opendyslexic OpenDyslexic-Regular.otf",
    "fonts-paratype": "truetype/paratype PTF55F.ttf PTM55F.ttf",
    "fonts-quattrocento": "opentype/quattrocento Quattrocento-Regular.otf",
    "fonts-rufscript": "truetype/rufscript Rufscript010.ttf",
    "fonts-sjfonts": "truetype/sjfonts Delphine.ttf",
    "fonts-staypuft": "truetype/staypuft StayPuft.ttf",
    "fonts-yanone-kaffeesatz": "opentype/yanone-kaffeesatz YanoneKaffeesatz-Regular.otf",
}
TEST_FONTS = {
    "fonts-3270": "truetype/3270 3270-Regular.ttf",
    "fonts-arapey": "opentype/arapey Arapey-Regular.otf",
    "fonts-blankenburg": "truetype/blankenburg Blankenburg_UNZ1A.ttf",
    "fonts-cantarell": "opentype/cantarell Cantarell-Regular.otf",
    "fonts-century-catalogue": "truetype/fonts-century-catalogue Century-Catalogue.ttf",
    "fonts-clear-sans": "truetype/clear-sans ClearSans-Regular.ttf",
    "fonts-comic-neue": "opentype/comic-neue ComicNeue-Regular.otf",
    "fonts-crosextra-caladea": "truetype/crosextra Caladea-Regular.ttf",
    "fonts-dustin": "truetype/dustin Domestic_Manners.ttf It_wasn_t_me.ttf Junkyard.ttf "
    "PenguinAttack.ttf",
    "fonts-ebgaramond": "opentype/ebgaramond EBGaramond12-Regular.otf",
    "fonts-engadget": "truetype/engadget Engadget.ttf",
    "fonts-fantasque-sans": "truetype/fantasque-sans/Normal/TTF FantasqueSansMono-Regular.ttf",
    "fonts-georgewilliams": "truetype/fonts-georgewilliams Cupola.ttf GWMonospace.ttf",
    "fonts-gfs-neohellenic": "opentype/neohellenic GFSNeohellenic.otf",
    "fonts-havana": "opentype/havana Havana-Regular.otf",
    "fonts-inconsolata": "truetype/inconsolata Inconsolata.otf",
    "fonts-lemonada": "opentype/lemonada Lemonada-Regular.otf",
    "fonts-lobster": "opentype/lobster lobster.otf",
    "fonts-opendin": "truetype/opendin OSP-DIN.ttf",
    "fonts-play": "opentype/play Play-Regular.otf",
    "fonts-prociono": "opentype/fonts-prociono Prociono.otf",
    "fonts-quicksand": "truetype/quicksand Quicksand-Regular.ttf",
    "fonts-routed-gothic": "truetype/routed-gothic routed-gothic.ttf",
    "fonts-tomsontalks": "truetype/tomsontalks TomsonTalks.ttf",
    "fonts-vollkorn": "truetype/vollkorn Vollkorn-Regular.ttf",
}


def font_paths(line: str) -> list[Path]:
    """The files that a line of these tables names."""
    folder, *names = line.split()
    return [FONTS / folder / name for name in names]
