@echo off
rem Opens the window; the first start makes the environment. "--pair-tool [FOLDER]" opens the pair tool alone.
setlocal
set "ROOT=%~dp0"
rem py comes with Python; python may be a stub that opens a shop.
set "BASE=python"
where py >nul 2>nul && set "BASE=py -3"
if defined TASTEMAKER_PYTHON set BASE="%TASTEMAKER_PYTHON%"
%BASE% "%ROOT%scripts\bootstrap.py" --quiet
if not %ERRORLEVEL%==0 goto failed
"%ROOT%.venv\Scripts\python.exe" "%ROOT%scripts\train_ui.py" %*
if not %ERRORLEVEL%==0 goto failed
exit /b 0
:failed
set "STATUS=%ERRORLEVEL%"
pause
exit /b %STATUS%
